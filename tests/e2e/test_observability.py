"""One gateway with everything switched on that tells about it: JSON lines, spans and profiles, of a real engine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_process import GatewayProcess
from otlp_collector import Collector, Span

pytestmark = [pytest.mark.engine, pytest.mark.slow]

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("profiles")


@pytest.fixture(scope="module")
def gateway(
    collector: Collector, profiles: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    arguments = [str(tiny_model), "--preset", "cpu", "--kv-cache-memory-bytes", "100000000"]
    arguments += ["--log-format", "json", "--log-prompts", "--log-prompt-chars", "40", "--log-level", "debug"]
    arguments += ["--otlp-traces-endpoint", collector.endpoint]
    arguments += ["--profiler-config.profiler", "torch", "--profiler-config.torch_profiler_dir", str(profiles)]
    arguments += ["--profiler-config.torch_profiler_with_stack", "false"]
    environment = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf", "OTEL_BSP_SCHEDULE_DELAY": "200"}
    with GatewayProcess(arguments, tmp_path_factory.mktemp("gateway") / "log", environment) as gateway:
        gateway.wait_ready()
        yield gateway


def lines(gateway: GatewayProcess) -> list[dict[str, Any]]:
    """What loggers wrote. Native libraries print some lines of their own, which nobody can change."""
    written = gateway.log().splitlines()
    loose = [line for line in written if not line.startswith("{")]
    assert not [line for line in loose if re.search(r"(DEBUG|INFO|WARNING|ERROR) \d\d-\d\d \d\d:", line)]
    return [json.loads(line) for line in written if line.startswith("{")]


def ask(client: httpx.Client, **body: Any) -> httpx.Response:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "drill-1"}
    prompt = "call ada@example.com about the weather of tomorrow"
    answer = client.post(
        "/v1/completions",
        json={"prompt": prompt, "max_tokens": 12, "ignore_eos": True, "stream": True, **body},
        headers=headers,
    )
    assert answer.status_code == 200, answer.text
    return answer


def test_every_line_of_all_processes_is_json_and_the_access_line_is_whole(gateway):
    with gateway.client() as client:
        answer = ask(client, stream_options={"include_usage": True})
    usage = json.loads(answer.text.split("data: ")[-2])["usage"]
    gateway.wait_for_log('"request_id":"drill-1","method"')
    found = lines(gateway)
    assert all({"time", "level", "logger", "message", "pid"} <= line.keys() for line in found)
    assert any(line["logger"].startswith("vllm.") and "EngineCore" in line.get("process", "") for line in found)
    line = next(line for line in found if line.get("request_id") == "drill-1" and "outcome" in line)
    assert line["outcome"] == "ok"
    assert line["prompt_tokens"] == usage["prompt_tokens"]
    assert line["completion_tokens"] == usage["completion_tokens"] == 12
    assert 0 <= line["queue_ms"] < line["ttft_ms"] < line["total_ms"]
    assert 0 < line["stall_ms"] < line["total_ms"]
    assert line["bytes_out"] == len(answer.content)
    assert line["trace_id"] == TRACE
    assert line["prompt"].startswith("call […] about")
    assert len(line["prompt"]) <= 40
    assert "uvicorn.access" not in {line["logger"] for line in found}
    assert "ada@example.com" not in gateway.log()


def test_spans_of_gateway_and_engine_have_the_right_parents(gateway, collector):
    with gateway.client() as client:
        ask(client)
    spans = collector.trace(TRACE, 5)
    request = spans["POST /v1/completions"]
    assert request.parent_id == PARENT
    below = {name: span for name, span in spans.items() if span.parent_id == request.span_id}
    assert set(below) == {"queue", "prefill", "decode", "llm_request"}
    assert_in_order(request, below["queue"], below["prefill"], below["decode"])
    assert request.attributes["gen_ai.usage.output_tokens"] == 12
    decode_s = (below["decode"].end_ns - below["decode"].start_ns) / 1e9
    told_s = below["llm_request"].attributes["gen_ai.latency.time_in_model_decode"]
    assert decode_s == pytest.approx(told_s, abs=0.5)


def assert_in_order(request: Span, *phases: Span) -> None:
    moments = [request.start_ns, *(at for phase in phases for at in (phase.start_ns, phase.end_ns)), request.end_ns]
    assert moments == sorted(moments)


def test_a_profile_is_a_file_that_a_viewer_opens(gateway, profiles):
    with gateway.client() as client:
        answer = client.post("/debug/profile", params={"duration_s": 0.5, "prefix": "drill"}).json()
        ask(client)
        refused = client.post("/debug/profile", params={"duration_s": 1000})
    assert answer["profiler"] == "torch"
    assert answer["folder"] == str(profiles)
    assert any(name.startswith("drill") and ".pt.trace.json" in name for name in answer["files"])
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "duration_s"
