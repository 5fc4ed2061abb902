"""Spans of each request, beside the one that vLLM makes: `queue`, `prefill` and `decode` below one for the request.

vLLM sets up the export when it is told where to (`--otlp-traces-endpoint`, protocol and sampling by OpenTelemetry's own
variables), and makes one span `llm_request` for each prompt that was answered. Ours continue the trace that the client
named in its `traceparent` header and are vLLM's parent; they are there for requests that were refused or aborted too.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from starlette.types import Message, Scope

from proxima_config.settings import ProximaSettings
from proxima_server.observability.record import Outcome, RequestRecord

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_CONTEXT_HEADERS = (b"traceparent", b"tracestate")


class Tracing:
    """Does nothing but take note of the client's trace id unless vLLM is told to export traces."""

    def __init__(self, settings: ProximaSettings) -> None:
        self._enabled = settings.engine.get("otlp_traces_endpoint") is not None

    def begin(self, record: RequestRecord, scope: Scope) -> None:
        """Start the request's span, and make it the parent of vLLM's."""
        given = {name: value for name, value in scope["headers"] if name in _CONTEXT_HEADERS}
        if not self._enabled:
            if match := _TRACEPARENT.fullmatch(given.get(b"traceparent", b"")):
                record.trace_id = match[1].decode()
            return
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier = {name.decode(): value.decode("latin-1") for name, value in given.items()}
        span = trace.get_tracer("proxima").start_span(
            f"{record.method} {record.path}",
            context=TraceContextTextMapPropagator().extract(carrier),
            kind=trace.SpanKind.SERVER,
            start_time=_ns(record.arrived_at_s),
        )
        if not span.get_span_context().is_valid:
            return
        record.span = span
        record.trace_id = trace.format_trace_id(span.get_span_context().trace_id)
        carrier = {}
        TraceContextTextMapPropagator().inject(carrier, trace.set_span_in_context(span))
        others = [(name, value) for name, value in scope["headers"] if name not in _CONTEXT_HEADERS]
        scope["headers"] = [*others, *((name.encode(), value.encode("latin-1")) for name, value in carrier.items())]

    def answer(self, record: RequestRecord, message: Message) -> None:
        """Tell the client which span its request became."""
        if record.span is not None:
            context = record.span.get_span_context()
            value = f"00-{record.trace_id}-{context.span_id:016x}-{context.trace_flags:02x}"
            message["headers"] = [*message.get("headers", ()), (b"traceresponse", value.encode())]

    def end(self, record: RequestRecord, route: str) -> None:
        """End the request's span, with the phases of the engine below it."""
        if record.span is None:
            return
        from opentelemetry import trace

        span = record.span
        span.update_name(f"{record.method} {route}")
        span.set_attributes(_attributes(record, route))
        if record.outcome in (Outcome.FAILED, Outcome.ABORTED):
            span.set_status(trace.StatusCode.ERROR, record.error_code or record.outcome.value)
        context = trace.set_span_in_context(span)
        self._phases(record, context)
        span.end()

    def _phases(self, record: RequestRecord, parent: Context) -> None:
        ends = [
            ("queue", record.read_s, record.scheduled_s),
            ("prefill", record.scheduled_s, record.first_token_s),
            ("decode", record.first_token_s, record.last_token_s),
        ]
        for name, start_s, end_s in ends:
            if start_s is not None and end_s is not None:
                _span(record, name, parent, start_s).end(_ns(record.wall_s(end_s)))


def _span(record: RequestRecord, name: str, parent: Context, start_s: float) -> Span:
    from opentelemetry import trace

    return trace.get_tracer("proxima").start_span(name, context=parent, start_time=_ns(record.wall_s(start_s)))


def _attributes(record: RequestRecord, route: str) -> dict[str, str | int]:
    """Names of OpenTelemetry's semantic conventions, where there is one."""
    known: dict[str, str | int | None] = {
        "http.request.method": record.method,
        "http.route": route,
        "http.response.status_code": record.status,
        "error.type": record.error_code,
        "gen_ai.request.model": record.model,
        "gen_ai.usage.input_tokens": record.prompt_tokens or None,
        "gen_ai.usage.output_tokens": record.output_tokens or None,
        "proxima.request_id": record.request_id,
        "proxima.class": record.class_name,
        "proxima.key": record.key_id,
        "proxima.outcome": record.outcome.value,
    }
    return {name: value for name, value in known.items() if value is not None}


def _ns(at_s: float) -> int:
    return int(at_s * 1e9)
