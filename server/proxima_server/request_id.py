"""The id of a request: the client's own if it is sane, else a new one.

It is `request.state.request_id`, in each answer's `x-request-id` header, in each log record (`request_id`, by
:class:`AddRequestId`) and part of the ids the engine knows the request by.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from contextvars import ContextVar

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-request-id"
PROCESSING_MS = "openai-processing-ms"

_SANE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=@-]{0,127}")
"""What may stand in a log line, a header and a trace without being escaped or cut."""

current_request_id: ContextVar[str | None] = ContextVar("current_request_id", default=None)
"""Id of the request that this task works for; None outside of one."""


def choose(offered: str | None) -> str:
    """`offered` if it is sane, else a new id."""
    if offered is not None and _SANE.fullmatch(offered):
        return offered
    return f"req_{uuid.uuid4().hex}"


class IdentifyRequests:
    """Gives each request its id and its time of arrival (`request.state.arrived_s`, of time.monotonic), and each answer
    the headers that say which request it answers and after how long."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = choose(Headers(scope=scope).get(HEADER))
        arrived_s = time.monotonic()
        scope.setdefault("state", {}).update(request_id=request_id, arrived_s=arrived_s)

        async def say(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[HEADER] = request_id
                headers[PROCESSING_MS] = f"{(time.monotonic() - arrived_s) * 1000:.0f}"
            await send(message)

        token = current_request_id.set(request_id)
        try:
            await self.app(scope, receive, say)
        finally:
            current_request_id.reset(token)


class AddRequestId(logging.Filter):
    """Puts `request_id` on each record: that of the request in whose task it was logged, or "-"."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.request_id = current_request_id.get() or "-"
        return True
