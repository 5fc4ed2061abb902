"""The end of a gateway that loses no request: what runs and waits finishes, what comes is sent elsewhere.

The port stays open all the while. Only when nothing remains, or when the time is up and the rest has been told so, does
the process end.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proxima_server.error_events import error_event
from proxima_server.errors import APIError, ErrorCode

_logger = logging.getLogger(__name__)

RETRY_AFTER_S = 5
"""What refused clients are told: another replica answers at once, this one's successor has to load first."""

# What is answered to the last, and nobody has to wait for: probes, scrapes, operators.
_NOT_WORK = ("/health", "/metrics", "/admin", "/debug", "/version", "/docs", "/openapi.json")
_DONE = b"data: [DONE]\n\n"


class Drain:
    """Which requests are being answered, and whether and until when they may finish."""

    def __init__(self, budget_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._budget_s = budget_s
        self._clock = clock
        self._ends_s: float | None = None
        self._active: set[_Work] = set()
        self._none_left = asyncio.Event()
        self._none_left.set()
        self._called_off = asyncio.Event()

    @property
    def draining(self) -> bool:
        return self._ends_s is not None

    @property
    def remaining(self) -> int:
        """Requests that are being answered or wait for it, at the door or in the engine."""
        return len(self._active)

    @property
    def remaining_s(self) -> float:
        """Seconds that those have; the whole budget while nobody drains."""
        return self._budget_s if self._ends_s is None else max(self._ends_s - self._clock(), 0.0)

    def begin(self) -> bool:
        """Refuse what comes from now on. Returns whether that is new."""
        if self._ends_s is not None:
            return False
        self._ends_s = self._clock() + self._budget_s
        _logger.info("draining: %d requests have %g s to finish", self.remaining, self._budget_s)
        return True

    async def finish(self) -> None:
        """Return once nothing remains; at the end of the budget the rest is ended with an error."""
        ended = [asyncio.create_task(event.wait()) for event in (self._none_left, self._called_off)]
        await asyncio.wait(ended, timeout=self.remaining_s, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.cancel()
        if self._active:
            why = "a second signal called the drain off" if self._called_off.is_set() else "the time to drain is over"
            those = "1 request is" if self.remaining == 1 else f"{self.remaining} requests are"
            _logger.warning("%s: %s ended with an error", why, those)
            for work in list(self._active):
                work.cut()

    def call_off(self) -> None:
        """End the rest now."""
        self._called_off.set()

    def enter(self, work: _Work) -> None:
        self._active.add(work)
        self._none_left.clear()

    def leave(self, work: _Work) -> None:
        self._active.discard(work)
        if not self._active:
            self._none_left.set()


def draining_error() -> APIError:
    headers = {"Retry-After": str(RETRY_AFTER_S), "Connection": "close"}
    return APIError(ErrorCode.SERVER_DRAINING, "This server is about to stop; send the request again", headers=headers)


class _Work:
    """One request on its way through the application."""

    def __init__(self, send: Send) -> None:
        self._send = send
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - every request is a task of the server
        self.task = task
        self.is_cut = False
        self._media_type: str | None = None
        self._over = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._media_type = Headers(scope=message).get("content-type", "")
        elif message["type"] == "http.response.body":
            self._over = not message.get("more_body", False) or message.get("body", b"").endswith(_DONE)
        await self._send(message)

    def cut(self) -> None:
        """End it with an error. A whole answer that is already on its way is left to arrive."""
        if self._media_type is None or self._streams:
            self.is_cut = True
            self.task.cancel()

    @property
    def _streams(self) -> bool:
        return (self._media_type or "").startswith(("text/event-stream", "application/x-ndjson"))

    async def tell(self, scope: Scope, receive: Receive) -> bool:
        """Say that it was cut, in the way the answer has begun. Returns whether there was anything to say."""
        error = draining_error()
        if self._media_type is None:
            await error.response()(scope, receive, self._send)
            return False
        if not self._over:
            body = error_event(scope["path"])(error)
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        return not self._over


class TrackWork:
    """ASGI middleware: tells the drain of each request, and closes connections while it lasts."""

    def __init__(self, app: ASGIApp, drain: Drain, count_stream_error: Callable[[ErrorCode], None]) -> None:
        self.app = app
        self._drain = drain
        self._count_stream_error = count_stream_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif is_work(scope["path"]):
            await self._work(scope, receive, self._closing(send))
        else:
            await self.app(scope, receive, self._closing(send))

    async def _work(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = _Work(send)
        self._drain.enter(work)
        try:
            await self.app(scope, receive, work.send)
        except asyncio.CancelledError:
            if not work.is_cut:
                raise
            work.task.uncancel()
            if await work.tell(scope, receive):
                self._count_stream_error(ErrorCode.SERVER_DRAINING)
        finally:
            self._drain.leave(work)

    def _closing(self, send: Send) -> Send:
        async def send_and_close(message: Message) -> None:
            if message["type"] == "http.response.start" and self._drain.draining:
                MutableHeaders(scope=message)["connection"] = "close"
            await send(message)

        return send_and_close


def is_work(path: str) -> bool:
    """Whether a drain waits for requests of this path."""
    return not any(path == each or path.startswith(f"{each}/") for each in _NOT_WORK)
