"""The pod that the chart renders by default, executed: it serves, is watched, and drains."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from chart import CHART, Rendered, render
from pod_process import PodProcess
from ports import free_ports
from prometheus_server import Prometheus

from proxima_config.monitoring.dashboard import ROWS
from proxima_config.monitoring.rules import ALERTS, RECORDINGS

pytestmark = [pytest.mark.slow, pytest.mark.engine]
QUESTION = {"model": "smollm2-135m", "messages": [{"role": "user", "content": "Tell me a story."}], "temperature": 0}


@pytest.fixture(scope="module")
def rendered() -> Rendered:
    """The defaults, but for ports that are free here and a shorter wait."""
    http, admin = free_ports(2)
    config = {"server": {"port": http, "host": "127.0.0.1"}, "admin": {"port": admin, "host": "127.0.0.1"}}
    return render({"config": config | {"lifecycle": {"drain_s": 60}}, "shutdown": {"preStopSeconds": 1}})


@pytest.fixture(scope="module")
def pod(rendered: Rendered, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PodProcess]:
    with PodProcess(rendered, tmp_path_factory.mktemp("pod")) as running:
        running.wait_ready()
        yield running


def test_it_is_ready_when_its_probes_say_so(pod: PodProcess):
    assert [pod.probe(name) for name in ("startup", "readiness", "liveness")] == [200, 200, 200]


def test_the_script_of_helm_test_passes(pod: PodProcess, rendered: Rendered):
    container = rendered.one("Pod", "llm-proxima-test")["spec"]["containers"][0]
    python, flag, script, url, *others = container["command"]
    assert (python, flag, url) == ("python", "-c", "http://llm-proxima:8000")
    # No cluster, no name: the Service stands for the pod's port.
    command = [sys.executable, flag, script, pod.url("http"), *others]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert "The capital of France is Paris." in ended.stdout


def test_the_script_of_helm_test_fails_for_a_model_that_is_not_served(pod: PodProcess):
    command = [sys.executable, CHART / "files" / "chat_test.py", pod.url("http"), "another", "10"]
    assert subprocess.run(command, capture_output=True, check=False, timeout=60).returncode != 0


def test_metrics_and_drain_are_not_on_the_port_of_the_service(pod: PodProcess):
    with httpx.Client(base_url=pod.url("http"), trust_env=False) as client:
        assert client.get("/metrics").status_code == 404
        assert client.post("/admin/drain").status_code == 404


def test_prometheus_has_data_for_every_panel_and_alert(pod: PodProcess, prometheus_programs: Path, tmp_path: Path):
    rules = CHART / "files" / "rules.yaml"
    with Prometheus(prometheus_programs, pod.url("admin"), tmp_path, rules) as prometheus:
        prometheus.query("up == 1")
        with ThreadPoolExecutor(6) as clients:
            answers = list(clients.map(lambda _: _ask(pod, max_tokens=24), range(18)))
        assert [answer.status_code for answer in answers] == [200] * 18
        for row in ROWS:
            for panel in row.panels:
                for query in panel.queries:
                    if not panel.device_only and not _needs_an_event(query.expression):
                        prometheus.query(_filled(query.expression))
        for alert in ALERTS:
            names = set(re.findall(r"\b(?:proxima[_:]\w+|DCGM_\w+)", alert.expression))
            assert names
            for name in names:
                if not name.startswith("DCGM_") and not _needs_an_event(name):
                    prometheus.query(name)
        for recording in RECORDINGS:
            prometheus.query(recording.name)


# Their series begin with an API key, which this pod has none of.
_EVENTS = ("proxima_key_requests_total", "proxima_key_tokens_total")


def _needs_an_event(expression: str) -> bool:
    return any(name in expression for name in _EVENTS)


def _filled(expression: str) -> str:
    for variable in ("namespace", "job", "instance"):
        expression = expression.replace(f"${variable}", ".*")
    return expression.replace("$__rate_interval", "30s")


def _ask(pod: PodProcess, max_tokens: int) -> httpx.Response:
    body = QUESTION | {"max_tokens": max_tokens, "ignore_eos": True}
    return httpx.post(f"{pod.url('http')}/v1/chat/completions", json=body, trust_env=False, timeout=120)


def test_a_deleted_pod_finishes_its_stream_within_the_grace_period(pod: PodProcess):
    """The last test of this file: it ends the pod."""
    body = QUESTION | {"max_tokens": 150, "ignore_eos": True, "stream": True}
    url = f"{pod.url('http')}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, trust_env=False, timeout=120) as answer:
        lines = (line for line in answer.iter_lines() if line.startswith("data: "))
        first = next(lines)
        pod.terminate()
        rest = list(lines)
    assert first != "data: [DONE]"
    assert rest[-1] == "data: [DONE]"
    assert len(rest) > 20, "the stream must outlive the signal"
    assert pod.process.wait(pod.grace_s - pod.pre_stop_s) == 0
