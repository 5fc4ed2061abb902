"""Server-sent events on their way to the client.

A stream that ends well ends as its source does. One that fails ends with exactly one error event, and nothing after it
says that all is well.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterable, Callable, Mapping
from typing import Any

from sse_starlette import EventSourceResponse
from sse_starlette.sse import AppStatus
from starlette.types import Receive, Scope, Send

from proxima_server.error_events import ErrorEvent
from proxima_server.errors import APIError, ErrorCode, internal_error
from proxima_server.serving import EventSource

FIRST_EVENT_GRACE_S = 0.2
"""How long the status line waits for the first event. The engine refuses a request within milliseconds: the client
then gets a true HTTP error instead of a 200 whose only event is one."""

_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}

SIGN_OF_LIFE = b"\n\n"
"""An empty event, which clients skip: sent at once when there is nothing else yet, so that they and proxies see a byte,
and now and then after it. Not a comment: vLLM's own benchmark client cuts the line breaks off what it reads, and then
takes a comment that came alone for the beginning of the next event, which is lost."""

# sse-starlette would cut running streams as soon as the server is asked to stop; ours may finish.
AppStatus.enable_automatic_graceful_drain = False

_logger = logging.getLogger(__name__)

CountError = Callable[[ErrorCode], None]


_LINE_BREAKS_OF_SOME = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}


def _one_line_for_all(event: str) -> str:
    """Escape what the SSE standard takes for text and many clients for the end of a line (httpx's `iter_lines` among
    them): generated text that holds it would be cut. JSON, the data of each event, holds it in strings alone.
    """
    return event if event.isascii() else event.translate(_LINE_BREAKS_OF_SOME)


class Events:
    """Ready-made events as bytes, which sse-starlette passes through (it would frame text a second time).

    `source` raises APIError when the stream fails. `error_event` frames it as the protocol of the stream does.
    """

    def __init__(
        self,
        source: EventSource,
        count_error: CountError,
        error_event: ErrorEvent = APIError.event,
        *,
        comments: bool = True,
    ) -> None:
        self._source = source
        self._count_error = count_error
        self._error_event = error_event
        self._comments = comments
        self._first: asyncio.Future[str] | None = asyncio.ensure_future(anext(source))
        self._failed = False

    async def open(self) -> None:
        """Wait briefly for the first event. Raises what the source raises instead of one."""
        try:
            await self._await_first()
        except BaseException:
            await self.aclose()
            raise

    async def _await_first(self) -> None:
        if self._first is None:
            return
        await asyncio.wait({self._first}, timeout=FIRST_EVENT_GRACE_S)
        if self._first.done() and not isinstance(self._first.exception(), StopAsyncIteration):
            self._first.result()

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> bytes:
        if self._failed:
            raise StopAsyncIteration
        if self._comments and self._first is not None and not self._first.done():
            self._comments = False
            return SIGN_OF_LIFE
        first, self._first = self._first, None
        try:
            event = await (first if first is not None else anext(self._source))
        except APIError as error:
            return self._fail(error)
        except Exception as error:
            if isinstance(error, StopAsyncIteration):
                raise
            _logger.exception("unexpected error in a stream")
            return self._fail(internal_error())
        return _one_line_for_all(event).encode()

    def _fail(self, error: APIError) -> bytes:
        self._failed = True
        self._count_error(error.code)
        return self._error_event(error)

    async def aclose(self) -> None:
        """Close the source, which aborts the generation if it still runs."""
        if self._first is not None:
            self._first.cancel()
            await asyncio.gather(self._first, return_exceptions=True)
        with contextlib.suppress(APIError):
            await self._source.aclose()


class StreamedAnswer(EventSourceResponse):
    """A streamed response that closes its events however it ends, even if it never began.

    Each `ping_s` a sign of life is sent, whether tokens flow or the request still waits, so that nobody between takes
    the connection for dead; 0 for never.
    """

    def __init__(
        self,
        content: AsyncIterable[bytes],
        events: Events,
        ping_s: float,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            content,
            headers={**_HEADERS, **(headers or {})},
            ping=ping_s,
            ping_message_factory=_sign_of_life,
            **options,
        )
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._events.aclose()


def _sign_of_life() -> Any:
    # sse-starlette sends bytes as they are; its types do not say so.
    return SIGN_OF_LIFE
