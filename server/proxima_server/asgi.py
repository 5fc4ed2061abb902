"""Plain ASGI middleware: no buffering, so streams and disconnects pass through untouched."""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proxima_server.errors import CLIENT_CLOSED_REQUEST
from proxima_server.metrics.gateway_metrics import GatewayMetrics

_SLASHES = re.compile("/{2,}")
_RAW_SLASHES = re.compile(b"/{2,}")

UNMATCHED_ROUTE = "unmatched"
"""Label of requests for paths that do not exist, which would otherwise make endless label values."""


class NormalizePath:
    """`//v1//models/` is `/v1/models`: clients whose base URL ends in a slash, or who add one, are common."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] == "http" and ("//" in path or (path.endswith("/") and path != "/")):
            scope["path"] = _SLASHES.sub("/", path).rstrip("/") or "/"
            scope["raw_path"] = _RAW_SLASHES.sub(b"/", scope.get("raw_path") or b"").rstrip(b"/") or b"/"
        await self.app(scope, receive, send)


class AnswerHead:
    """HEAD is answered as GET is; the server leaves the body out."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self.app(scope, receive, send)


class CountRequests:
    """Counts requests by route and status, and those in flight (a stream is, until its last event)."""

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status = CLIENT_CLOSED_REQUEST

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        with self.metrics.in_flight():
            try:
                await self.app(scope, receive, note_status)
            except Exception:
                # It broke in the middle of its answer.
                status = 500
                raise
            finally:
                route = getattr(scope.get("route"), "path", UNMATCHED_ROUTE)
                self.metrics.count_request(route, scope["method"], status)
