"""Start, death and end of a gateway, each in a process of its own with a model that loads at once.

What happens to many requests meanwhile is drilled in test_drills.py.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from gateway_process import PROXIMA, GatewayProcess

pytestmark = pytest.mark.engine

SMALL = ["--max-model-len", "2048", "--kv-cache-memory-bytes", "100000000", "--enforce-eager"]
ENDLESS = {"prompt": "a", "max_tokens": 2000, "ignore_eos": True}


@pytest.fixture
def start(tiny_model, tmp_path):
    def start(*arguments: str, **environment: str) -> GatewayProcess:
        return GatewayProcess([str(tiny_model), *SMALL, *arguments], tmp_path / "log", environment)

    return start


# What Kubernetes injects into pods beside Services called vllm and proxima.
SERVICE_LINKS = {
    f"{name}_{part}": value
    for name in ("VLLM", "PROXIMA")
    for part, value in (
        ("PORT", "tcp://10.0.0.1:8000"),
        ("PORT_8000_TCP", "tcp://10.0.0.1:8000"),
        ("PORT_8000_TCP_ADDR", "10.0.0.1"),
        ("SERVICE_HOST", "10.0.0.1"),
        ("SERVICE_PORT", "8000"),
    )
}


@pytest.mark.slow
def test_a_killed_engine_fails_liveness_and_requests_at_once_then_ends_the_process(start):
    with start("--exit-delay-s", "10", **SERVICE_LINKS) as gateway, ThreadPoolExecutor() as background:
        gateway.wait_listening()
        with gateway.client() as client:
            assert client.get("/health/live").status_code == 200
            assert client.get("/health/startup").status_code == 503
            refused = client.post("/v1/completions", json=ENDLESS)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_unavailable")
            assert "retry-after" in refused.headers
            gateway.wait_ready()

            whole = background.submit(client.post, "/v1/completions", json=ENDLESS)
            with client.stream("POST", "/v1/completions", json={**ENDLESS, "stream": True}) as stream:
                lines = stream.iter_lines()
                next(lines)
                for process in gateway.engine_processes():
                    process.kill()
                rest = [line for line in lines if line]
            assert "SIGKILL" in _assert_unavailable(whole.result())
            told = json.loads(rest[-1].removeprefix("data: "))["error"]
            assert told["code"] == "engine_unavailable"
            assert "SIGKILL" in told["message"]
            assert "[DONE]" not in "".join(rest)
            gateway.wait_for(client, "/health/live", 503)
            assert client.get("/health/ready").status_code == 503
            assert "SIGKILL" in _assert_unavailable(client.post("/v1/completions", json=ENDLESS))
            assert client.get("/metrics").status_code == 200
            assert client.get("/health/startup").status_code == 200
        assert gateway.wait_exit() == 1
    assert "proxima: error: the engine died" in gateway.log().strip().splitlines()[-1]
    assert "VLLM_PORT" in gateway.log()


def _assert_unavailable(response: httpx.Response) -> str:
    assert response.status_code == 503
    error = response.json()["error"]
    assert error["code"] == "engine_unavailable"
    return error["message"]


@pytest.mark.slow
def test_a_failed_start_ends_with_the_cause_as_last_line(start, tiny_model, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in tiny_model.iterdir():
        (broken / file.name).write_bytes(file.read_bytes()[: -100_000 if file.suffix == ".safetensors" else None])
    with GatewayProcess([str(broken), *SMALL], tmp_path / "log") as gateway:
        assert gateway.wait_exit() == 1
    last = gateway.log().strip().splitlines()[-1]
    assert last.startswith("proxima: error: ")
    assert "safetensor" in last.lower(), last


@pytest.mark.slow
def test_sigterm_to_all_of_it_while_it_loads_is_no_failure(start):
    """As `timeout` and some supervisors send it: to the whole process group."""
    with start() as gateway:
        gateway.wait_listening()
        for process in [*gateway.engine_processes(), gateway.process]:
            process.send_signal(signal.SIGTERM)
        assert gateway.wait_exit() == 0
    assert "error:" not in gateway.log()


@pytest.mark.parametrize(
    "command",
    [
        pytest.param([PROXIMA, "serve"], id="proxima_serve"),
        pytest.param([sys.executable, "-m", "proxima_server"], id="python_m_proxima_server"),
    ],
)
def test_a_taken_port_is_told_in_one_line_before_anything_is_loaded(command):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = subprocess.run([*command, "--port", str(port)], check=False, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr.strip().splitlines() == [
        f"proxima: error: port {port} on 127.0.0.1 is already in use; stop what uses it or choose another with --port"
    ]
