"""An OpenTelemetry collector that keeps the spans it gets (OTLP over HTTP, protobuf)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

WAIT_S = 30


@dataclass(frozen=True)
class Span:
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    failed: bool
    attributes: dict[str, Any]


class Collector:
    """Listens on a free port of this machine while used as a context."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._arrived = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.path == "/v1/traces"
                collector.take(ExportTraceServiceRequest.FromString(body))
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    def __enter__(self) -> Collector:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def take(self, request: ExportTraceServiceRequest) -> None:
        with self._arrived:
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    self.spans += map(_span, scope.spans)
            self._arrived.notify_all()

    def wait_for(self, wanted: Callable[[list[Span]], bool]) -> list[Span]:
        """All spans, as soon as they are `wanted`."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: wanted(self.spans), timeout=WAIT_S), self.spans
            return list(self.spans)

    def trace(self, trace_id: str, count: int) -> dict[str, Span]:
        """The `count` spans of one trace by name, when they have arrived."""
        spans = self.wait_for(lambda spans: sum(span.trace_id == trace_id for span in spans) >= count)
        return {span.name: span for span in spans if span.trace_id == trace_id}


def _span(span: Any) -> Span:
    return Span(
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        failed=span.status.code == 2,
        attributes={each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes},
    )
