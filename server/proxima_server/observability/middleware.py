"""Watches every request from its arrival to the last byte of its answer."""

from __future__ import annotations

import time
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proxima_engine import watch
from proxima_server.gateway import Gateway
from proxima_server.observability import access_log
from proxima_server.observability.record import Outcome, RequestRecord
from proxima_server.observability.tracing import Tracing

UNMATCHED_ROUTE = "unmatched"
"""Label of requests for paths that do not exist, which would otherwise make endless label values."""

_MAX_PATH_CHARS = 200
# Routes whose requests ask the model for something; the others are about the gateway.
_ASKING = ("/v1/", "/generate")


class ObserveRequests:
    """Plain ASGI: nothing is buffered, and a chunk of a stream costs two additions."""

    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self._app = app
        self._http = gateway.metrics
        self._requests = gateway.request_metrics
        self._active = gateway.active_requests
        self._tracing = Tracing(gateway.settings)
        logging = gateway.settings.logging
        self._prompt_chars = logging.prompt_chars if logging.prompts else 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = quote(scope["path"][:_MAX_PATH_CHARS])
        record = RequestRecord(self._requests, scope["method"], path, self._prompt_chars)
        record.request_id = scope.get("state", {}).get("request_id")
        self._tracing.begin(record, scope)

        async def watched_receive() -> Message:
            message = await receive()
            record.bytes_in += len(message.get("body", b""))
            return message

        async def watched_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                self._tracing.answer(record, message)
            record.bytes_out += len(message.get("body", b""))
            await send(message)
            record.answered = message["type"] == "http.response.body" and not message.get("more_body", False)

        token = watch.current.set(record)
        if record.method == "POST" and path.startswith(_ASKING):
            self._active.add(record)
        try:
            with self._http.in_flight():
                await self._app(scope, watched_receive, watched_send)
        except Exception:
            # It broke in the middle of its answer.
            record.status = 500
            record.failed = True
            raise
        finally:
            watch.current.reset(token)
            self._active.discard(record)
            record.key_id = getattr(scope.get("state", {}).get("api_key"), "name", None)
            self._end(record, getattr(scope.get("route"), "path", UNMATCHED_ROUTE))

    def _end(self, record: RequestRecord, route: str) -> None:
        self._http.count_request(route, record.method, record.status)
        if record.method == "POST" and route.startswith(_ASKING):
            self._count(record)
        self._tracing.end(record, route)
        access_log.write(record)

    def _count(self, record: RequestRecord) -> None:
        self._requests.count_outcome(record.class_name, record.outcome.value)
        if record.key_id is not None:
            self._requests.count_key(record.key_id, record.outcome.value, record.prompt_tokens, record.output_tokens)
        if record.outcome is Outcome.OK and record.sent_s is not None:
            self._requests.of_class(record.class_name).total.observe(time.monotonic() - record.arrived_s)
