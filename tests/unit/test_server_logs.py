"""What the gateway's process writes, by format and level. Logging belongs to a whole process, so each case gets one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import logging, sys, warnings
from proxima_config.settings import LoggingSettings
from proxima_server import logs
from proxima_server.metrics.request_metrics import RequestMetrics
from proxima_server.observability import access_log
from proxima_server.observability.record import RequestRecord
from proxima_server.request_id import current_request_id

logs.configure(LoggingSettings.model_validate_json(sys.argv[1]))
current_request_id.set("mine-1")
logging.getLogger("proxima_server.door").info("two\\nlines")
logging.getLogger("proxima_engine.runtime").debug("details")
logging.getLogger("somebody.else").warning("careful")
logging.getLogger("vllm.serving").error("no model %s", "x" * 100_000)
warnings.warn("old", DeprecationWarning)
try:
    raise ValueError("bad")
except ValueError:
    logging.getLogger("proxima_server.gateway").exception("it broke")
access_log.write(RequestRecord(RequestMetrics(), "GET", "/v1/models"))
access_log.write(RequestRecord(RequestMetrics(), "GET", "/health/live"))
"""


def written(**settings: object) -> str:
    command = [sys.executable, "-W", "always", "-c", PROGRAM, json.dumps(settings)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def test_json_is_one_object_per_line_whatever_is_logged_and_by_whom():
    lines = {line["logger"]: line for line in map(json.loads, written(format="json").splitlines())}
    assert set(lines) == {
        "proxima_server.door",
        "somebody.else",
        "vllm.serving",
        "py.warnings",
        "proxima_server.gateway",
        "proxima_server.access",
    }
    assert lines["proxima_server.door"]["message"] == "two\nlines"
    assert lines["proxima_server.door"]["request_id"] == "mine-1"
    assert lines["proxima_server.gateway"]["error"].endswith("ValueError: bad")
    assert "old" in lines["py.warnings"]["message"]
    assert lines["vllm.serving"]["message"].endswith("x... and 92009 characters more")
    assert lines["proxima_server.access"]["path"] == "/v1/models"


def test_text_has_one_line_per_request_too():
    text = written()
    assert text.count("[proxima_server.access]") == 1
    assert max(map(len, text.splitlines())) < 8_200
    assert "method=GET path=/v1/models status=499 outcome=aborted" in text
    assert "request_id=mine-1" in text
    assert "Traceback" in text


@pytest.mark.parametrize("format_", ["text", "json"])
def test_level_and_access_lines_can_be_chosen(format_):
    everything = written(format=format_, level="debug")
    assert "details" in everything
    assert "/health/live" in everything
    assert "proxima_server.access" not in written(format=format_, access=False)
    assert "proxima_server.access" not in written(format=format_, level="warning")
