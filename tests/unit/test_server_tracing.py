"""Spans of each request, as a collector gets them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest
from fake_gateway import BROKEN, PROMPT_TOKENS, fake_gateway
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from otlp_collector import Collector, Span

from proxima_engine import watch

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
TRACED = {"engine": {"otlp_traces_endpoint": "http://collector"}}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    """Set up as vLLM does when the engine starts, which happens once in a process."""
    with Collector() as collector:
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=collector.endpoint)))
        trace.set_tracer_provider(provider)
        yield collector
        provider.shutdown()


def context(trace_id: str) -> dict[str, str]:
    return {"traceparent": f"00-{trace_id}-{PARENT}-01", "tracestate": "vendor=1"}


async def spans_of(collector: Collector, trace_id: str, count: int) -> dict[str, Span]:
    """The server goes on meanwhile: a span ends after the client has its answer."""
    return await asyncio.to_thread(collector.trace, trace_id, count)


def assert_follow(*spans: Span) -> None:
    """Each begins where the one before ended."""
    for before, after in itertools.pairwise(spans):
        assert before.start_ns <= before.end_ns == after.start_ns <= after.end_ns


async def test_queue_prefill_and_decode_are_below_the_request_below_the_client(collector):
    async with fake_gateway(**TRACED) as gateway:
        await gateway.ready()
        gateway.serving.events[:1] *= 3
        answer = await gateway.client.post(
            "/v1/completions", json={"stream": True, "model": "fake"}, headers=context(TRACE)
        )
        spans = await spans_of(collector, TRACE, 4)
    request = spans["POST /v1/completions"]
    assert request.parent_id == PARENT
    assert answer.headers["traceresponse"] == f"00-{TRACE}-{request.span_id}-01"
    assert {name for name, span in spans.items() if span.parent_id == request.span_id} == {"queue", "prefill", "decode"}
    assert_follow(spans["queue"], spans["prefill"], spans["decode"])
    assert request.start_ns <= spans["queue"].start_ns
    assert spans["decode"].end_ns <= request.end_ns
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["gen_ai.usage.input_tokens"] == PROMPT_TOKENS
    assert request.attributes["gen_ai.usage.output_tokens"] == 3
    assert request.attributes["gen_ai.request.model"] == "fake"
    assert request.attributes["proxima.request_id"] == answer.headers["x-request-id"]
    assert request.attributes["proxima.outcome"] == "ok"
    assert not request.failed


async def test_the_engine_is_told_that_its_parent_is_our_span(collector):
    told = {}

    async with fake_gateway(**TRACED) as gateway:
        await gateway.ready()
        answered = gateway.serving.answer

        async def answer(path, body, request):
            told.update(request.headers)
            return await answered(path, body, request)

        gateway.serving.answer = answer
        trace_id = TRACE[::-1]
        await gateway.client.post("/v1/completions", json={}, headers=context(trace_id))
        spans = await spans_of(collector, trace_id, 4)
    assert told["traceparent"] == f"00-{trace_id}-{spans['POST /v1/completions'].span_id}-01"
    assert told["tracestate"] == "vendor=1"


async def test_without_a_parent_a_trace_begins_here(collector):
    async with fake_gateway(**TRACED) as gateway:
        await gateway.ready()
        answer = await gateway.client.get("/version")
        trace_id = answer.headers["traceresponse"].split("-")[1]
        spans = await spans_of(collector, trace_id, 1)
    assert spans["GET /version"].parent_id == ""


async def test_refused_and_failed_requests_have_spans_too(collector):
    async with fake_gateway(**TRACED) as gateway:
        await gateway.ready()
        refused, failed = "a" * 32, "b" * 32
        json_ = {"Content-Type": "application/json"}
        await gateway.client.post("/v1/completions", content="{", headers={**context(refused), **json_})
        gateway.serving.events.insert(1, BROKEN)
        await gateway.client.post("/v1/completions", json={"stream": True}, headers=context(failed))
        refusal = (await spans_of(collector, refused, 1))["POST /v1/completions"]
        failure = (await spans_of(collector, failed, 4))["POST /v1/completions"]
    assert refusal.attributes["error.type"] == "invalid_json"
    assert not refusal.failed, "the client's mistake is no error of the server"
    assert failure.failed
    assert failure.attributes["error.type"] == "internal_error"


async def test_without_an_endpoint_nothing_is_exported_and_the_clients_trace_id_is_kept_for_the_log(collector):
    before = len(collector.spans)
    noted = []
    async with fake_gateway() as gateway:
        await gateway.ready()
        gateway.serving.answers = lambda _body: noted.append(watch.current.get().trace_id) or b"{}"
        answer = await gateway.client.post("/v1/completions", json={}, headers=context(TRACE))
        await gateway.client.post("/v1/completions", json={}, headers={"traceparent": "nonsense"})
    assert "traceresponse" not in answer.headers
    assert noted == [TRACE, None]
    assert len(collector.spans) == before
