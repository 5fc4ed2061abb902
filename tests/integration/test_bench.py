"""The load generator and the forced output length against the real engine."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from gateway_process import PROXIMA, START_TIMEOUT_S

from proxima_config.forced_length import FIELD
from proxima_server.cli.main import main

pytestmark = pytest.mark.engine


def test_every_answer_has_its_forced_length_though_all_declare_the_same_cap(gateway_url, capsys, tmp_path):
    log = tmp_path / "log.jsonl"
    flags = ["--requests", "16", "--concurrency", "16", "--warmup", "1", "--temperature", "1"]
    shape = ["--input-tokens", "48", "--output-tokens", "1|2|24", "--log-requests", str(log)]
    assert main(["bench", "serve", "--url", gateway_url, *flags, *shape, "--max-error-rate", "0", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert {row["wanted_tokens"] for row in rows} == {1, 2, 24}
    assert [row["output_tokens"] for row in rows] == [row["wanted_tokens"] for row in rows]
    assert {row["finish_reason"] for row in rows} == {"stop"}
    assert report["load"]["missed_lengths"] == 0
    assert report["load"]["prompt_lengths"] == "exact, by the server's tokenizer"
    assert {row["prompt_tokens"] for row in rows} == {48}
    assert report["tokens"]["source"] == "usage"
    assert report["server"]["kv_use"]["max"] > 0


@pytest.mark.parametrize("api", ["completions", "generate"])
def test_the_other_endpoints_force_lengths_too(gateway_url, capsys, api):
    flags = ["--requests", "4", "--warmup", "0", "--output-tokens", "7", "--json", "--api", api]
    assert main(["bench", "serve", "--url", gateway_url, *flags]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["requests"]["completed"] == 4
    # The end itself is a token but shows no text; `/generate` has no usage and its lines are counted.
    assert report["tokens"]["output"] == 4 * 7


@pytest.mark.parametrize("length", [0, 1.5, "many"])
def test_a_forced_length_that_is_none_is_refused(http, length):
    body = {"prompt": "a", "max_tokens": 4, "vllm_xargs": {FIELD: length}}
    answer = http.post("/v1/completions", json=body)
    assert answer.status_code == 400
    assert FIELD in answer.json()["error"]["message"]


@pytest.mark.slow
def test_servers_that_run_already_are_compared(gateway_url, capsys):
    flags = ["--requests", "8", "--concurrency", "4", "--warmup", "2", "--output-tokens", "8|16", "--rounds", "3"]
    arms = f"url:a={gateway_url},url:b={gateway_url}"
    assert main(["bench", "compare", "--arms", arms, *flags, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["measurements"]) == 6
    assert {each["report"]["load"]["missed_lengths"] for each in report["measurements"]} == {0}
    assert {each["report"]["server"]["kv_blocks"] for each in report["measurements"]} == {192}
    (case,) = report["cases"]
    assert case["arms"]["b"]["output_tokens_per_s"]["ratio"]["value"] > 0
    assert not [each for each in report["warnings"] if "KV blocks" in each]


TINY_ENGINE = ["--max-model-len", "512", "--num-gpu-blocks-override", "24", "--kv-cache-memory-bytes", "100000000"]
# Forced lengths, and more blocks demanded than there are.
TINY_LOAD = ["--requests", "12", "--warmup", "2", "--concurrency", "12"]
TINY_LOAD += ["--input-tokens", "40", "--output-tokens", "90"]


@pytest.mark.slow
def test_compare_starts_its_arms_alike_and_stops_them(tiny_model, tmp_path, capsys):
    flags = ["--model", str(tiny_model), *TINY_LOAD, "--cap-tokens", "128", "--rounds", "1", "--logs", str(tmp_path)]
    assert main(["bench", "compare", "--arms", "native,proxima", *flags, "--json", "--", *TINY_ENGINE]) == 0
    report = json.loads(capsys.readouterr().out)
    measured = {each["arm"]: each["report"] for each in report["measurements"]}
    assert set(measured) == {"native", "proxima"}
    for found in measured.values():
        assert found["requests"]["completed"] == 12
        assert found["tokens"]["output"] == 12 * 90
        assert found["server"]["kv_blocks"] == 24
        assert found["server"]["preemptions"] > 0
    for name in ("native", "proxima"):
        assert f"scheduler {name}" in (tmp_path / f"{name}.log").read_text()
    assert not engines(tiny_model)


@pytest.mark.slow
def test_a_comparison_that_is_terminated_leaves_no_server_behind(tiny_model, tmp_path):
    command = [PROXIMA, "bench", "compare", "--model", str(tiny_model), "--logs", str(tmp_path), "--", *TINY_ENGINE]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as comparison:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not engines(tiny_model) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert engines(tiny_model)
        comparison.send_signal(signal.SIGTERM)
        assert comparison.wait(START_TIMEOUT_S) == 143
    assert not engines(tiny_model)


def engines(model: Path) -> list[psutil.Process]:
    """Gateways that serve the model of these tests; those that run beside them have their own."""
    asked = {"serve", str(model)}
    return [process for process in psutil.process_iter(["cmdline"]) if asked <= set(process.info["cmdline"] or [])]
