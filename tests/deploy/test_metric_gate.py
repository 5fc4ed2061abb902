"""The gate of a canary, run as its pod runs it, against a Prometheus that says what the test wants."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlparse

import pytest
from chart import CHART, render, values_of


class ScriptedPrometheus(ThreadingHTTPServer):
    """Answers queries with the values of `answers`, one after the other, the last one for ever."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[list[str]] = []
        self.questions: list[str] = []


class _Handler(BaseHTTPRequestHandler):
    server: ScriptedPrometheus

    def do_GET(self) -> None:
        self.server.questions.append(parse_qs(urlparse(self.path).query)["query"][0])
        answers = self.server.answers
        values = answers.pop(0) if len(answers) > 1 else answers[0]
        body = json.dumps({"data": {"result": [{"value": [0, value]} for value in values]}}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def prometheus() -> Iterator[ScriptedPrometheus]:
    with ScriptedPrometheus() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def run_gate(url: str, limit: float = 0.01) -> subprocess.CompletedProcess[str]:
    """The command that the chart renders for the canary, watching for a moment."""
    values = values_of(CHART / "ci" / "canary-release-values.yaml")
    values["metricGate"] |= {"prometheus": url, "max": limit, "durationSeconds": 1, "intervalSeconds": 1}
    container = render(values).one("Job")["spec"]["template"]["spec"]["containers"][0]
    command = [sys.executable, *container["command"][1:]]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param([["0.002"]], id="below"),
        pytest.param([[]], id="no_series_yet"),
        pytest.param([["NaN"]], id="no_requests_yet"),
    ],
)
def test_a_good_canary_passes(prometheus: ScriptedPrometheus, answers: list[list[str]]):
    prometheus.answers = answers
    ended = run_gate(f"http://127.0.0.1:{prometheus.server_port}")
    assert ended.returncode == 0, ended.stderr
    assert 'pod=~"llm-proxima-.+"' in prometheus.questions[0]


def test_a_bad_canary_fails_with_figure_and_expression(prometheus: ScriptedPrometheus):
    prometheus.answers = [["0.002"], ["0.5"]]
    ended = run_gate(f"http://127.0.0.1:{prometheus.server_port}")
    assert ended.returncode == 1
    assert "0.5 is above 0.01" in ended.stderr
    assert 'outcome="failed"' in ended.stderr


def test_a_prometheus_that_never_answers_lets_nobody_pass():
    ended = run_gate("http://127.0.0.1:1")
    assert ended.returncode == 1
    assert "never answered" in ended.stderr
