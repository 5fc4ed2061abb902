"""A gateway with what is off by default, as `proxima serve` starts it: strict parameters, HTTPS, a port for operators,
a web origin, a reasoning parser. The last test ends it with a second signal."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from certificates import who_answers, write_certificate
from gateway_process import GatewayProcess

pytestmark = [pytest.mark.engine, pytest.mark.slow]

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": MESSAGES, "max_tokens": 8},
    COMPLETIONS: {"prompt": "Hi", "max_tokens": 8},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 8},
    "/v1/messages": {"model": "tiny", "messages": MESSAGES, "max_tokens": 8},
}
# Not imported: it imports vLLM.
PARSER = Path(__file__).parents[1] / "support" / "thinking_parser.py"
THOUGHT_CHARS = 3
ORIGIN = "https://app.example.com"
FLAGS = ["--max-model-len", "2048", "--kv-cache-memory-bytes", "200000000", "--enforce-eager", "--drain-s", "600"]
FLAGS += ["--served-model-name", "tiny", "--strict-params", "--cors-origins", ORIGIN, "--max-header-bytes", "4096"]
FLAGS += ["--long-prompt-tokens", "500", "--log-format", "json", "--trusted-proxies", "127.0.0.1"]
FLAGS += ["--reasoning-parser", "first_characters", "--reasoning-parser-plugin", str(PARSER)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dressed")


@pytest.fixture(scope="module")
def admin_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


@pytest.fixture(scope="module")
def gateway(tiny_model: Path, folder: Path, admin_port: int) -> Iterator[GatewayProcess]:
    certificate, key = write_certificate(folder)
    flags = [*FLAGS, "--tls-cert-file", certificate, "--tls-key-file", key, "--admin-port", str(admin_port)]
    with GatewayProcess([str(tiny_model), *flags], folder / "log") as gateway:
        gateway.wait_listening()
        with admin_client(admin_port) as operator:
            gateway.wait_for(operator, "/health/startup", 200)
        yield gateway


def admin_client(port: int) -> httpx.Client:
    return httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60)


@pytest.fixture(scope="module")
def operator(gateway: GatewayProcess, admin_port: int) -> Iterator[httpx.Client]:
    with admin_client(admin_port) as client:
        yield client


@pytest.fixture
def client(gateway: GatewayProcess) -> Iterator[httpx.Client]:
    # Nobody has signed its certificate but itself.
    with httpx.Client(base_url=gateway.url, trust_env=False, timeout=120, verify=False) as client:
        yield client


def chunks(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]", lines
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", sorted(BODIES))
@pytest.mark.parametrize(
    ("fields", "param"),
    [({"no_such_field": 1}, "no_such_field"), ({"prompt_cache_key": "a"}, "prompt_cache_key")],
    ids=["unknown", "without_effect"],
)
def test_strict_parameters_refuse_what_has_no_effect(client, path, stream, fields, param):
    sound = {**BODIES[path], "stream": stream}
    response = client.post(path, json={**sound, **fields})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "unsupported_parameter", param)
    accepted = client.post(path, json={**sound, **({} if path == "/v1/messages" else {"user": "me", "metadata": {}})})
    assert accepted.status_code == 200, accepted.text
    assert "x-proxima-ignored-params" not in accepted.headers


def test_reasoning_has_both_names_in_whole_answers_and_in_streams(client):
    body = {**BODIES[CHAT], "temperature": 0, "ignore_eos": True, "max_tokens": 12}
    message = client.post(CHAT, json=body).json()["choices"][0]["message"]
    assert len(message["reasoning"]) == THOUGHT_CHARS
    assert message["reasoning_content"] == message["reasoning"]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks(client.post(CHAT, json={**body, "stream": True}))]
    thoughts = [delta for delta in deltas if delta.get("reasoning")]
    assert thoughts
    assert all(delta["reasoning_content"] == delta["reasoning"] for delta in thoughts)


@pytest.mark.parametrize("path", sorted(BODIES))
def test_an_unknown_model_is_an_error_of_the_client_and_none_in_the_log(gateway, client, path):
    response = client.post(path, json={**BODIES[path], "model": "nowhere"})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
    lines = [json.loads(line) for line in gateway.log().splitlines() if line.startswith("{")]
    assert lines
    assert not [line for line in lines if line["level"] == "ERROR"]


def test_operators_have_a_port_of_their_own(client, operator):
    assert operator.get("/metrics").status_code == 200
    assert client.get("/metrics").status_code == client.post("/admin/drain").status_code == 404
    assert operator.post(COMPLETIONS, json=BODIES[COMPLETIONS]).status_code == 404
    assert client.get("/health/live").status_code == operator.get("/health/live").status_code == 200


def test_only_the_named_origin_may_ask_from_a_browser(client):
    preflight = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    named = client.options(CHAT, headers={"origin": ORIGIN, **preflight})
    assert (named.status_code, named.headers["access-control-allow-origin"]) == (200, ORIGIN)
    other = client.options(CHAT, headers={"origin": "https://evil.example.com", **preflight})
    assert "access-control-allow-origin" not in other.headers


def test_headers_have_a_limit(client):
    refused = client.get("/v1/models", headers={"x-long": "a" * 5000})
    assert (refused.status_code, refused.json()["error"]["code"]) == (431, "headers_too_large")
    assert client.get("/v1/models").status_code == 200


def test_long_prompts_are_scheduled_in_a_class_of_their_own(client, operator):
    def counted() -> list[str]:
        lines = operator.get("/metrics").text.splitlines()
        return [line for line in lines if line.startswith('proxima_requests_total{class="long",outcome="ok"}')]

    assert not counted()
    assert client.post(COMPLETIONS, json={"prompt": [7] * 600, "max_tokens": 2}).status_code == 200
    assert client.post(COMPLETIONS, json={"prompt": [7] * 60, "max_tokens": 2}).status_code == 200
    assert [line.split()[-1] for line in counted()] == ["1.0"]


async def test_a_renewed_certificate_is_shown_without_a_restart(gateway, folder):
    where = urlsplit(gateway.url)
    address = (str(where.hostname), int(where.port or 0))
    assert await who_answers(address) == "first"
    write_certificate(folder, "second")
    async with asyncio.timeout(60):
        while await who_answers(address) != "second":
            await asyncio.sleep(0.5)


def test_an_operator_drains_it_and_a_second_signal_ends_it_now_and_tells_who_is_left(gateway, client, operator):
    lines: list[str] = []
    begun = threading.Event()

    def read() -> None:
        body = {"prompt": "a", "max_tokens": 2000, "ignore_eos": True, "stream": True}
        with client.stream("POST", COMPLETIONS, json=body) as response:
            for line in response.iter_lines():
                lines.append(line)
                if line.startswith("data: "):
                    begun.set()

    reading = threading.Thread(target=read)
    reading.start()
    assert begun.wait(60)
    told = operator.post("/admin/drain")
    assert (told.status_code, told.json()["remaining_requests"]) == (202, 1)
    gateway.wait_for(operator, "/health/ready", 503)
    # As the first signal does, which comes next where a pod is taken away, it lets those who run finish, and sends all
    # others elsewhere; also those who only ask what there is.
    gateway.process.send_signal(signal.SIGTERM)
    with httpx.Client(base_url=gateway.url, trust_env=False, timeout=60, verify=False) as other:
        models = other.get("/v1/models")
    assert (models.status_code, models.json()["error"]["code"]) == (503, "server_draining")
    assert reading.is_alive()
    engine = gateway.engine_processes()
    gateway.process.send_signal(signal.SIGTERM)
    reading.join(60)
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert json.loads(events[-1])["error"]["code"] == "server_draining"
    assert "[DONE]" not in events
    assert gateway.wait_exit() == 128 + signal.SIGTERM
    assert "a second signal called the drain off: 1 request is ended with an error" in gateway.log()
    assert "Traceback" not in gateway.log()
    assert not any(process.is_running() for process in engine)
