"""Server-sent events: vLLM's ready-made events on their way to the client.

vLLM ends a stream that failed with an error event *and* `[DONE]`, which tells clients that all went well. Here a
failed stream ends with exactly one error event.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from typing import Any

from sse_starlette import EventSourceResponse
from sse_starlette.sse import AppStatus
from starlette.types import Receive, Scope, Send

from proxima_server.errors import APIError, ErrorCode

ERROR_PREFIX = 'data: {"error":'

FIRST_EVENT_GRACE_S = 0.2
"""How long the status line waits for the first event. The engine refuses a request within milliseconds: the client
then gets a true HTTP error instead of a 200 whose only event is one."""

_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}

# sse-starlette would cut running streams as soon as the server is asked to stop; ours may finish.
AppStatus.enable_automatic_graceful_drain = False

Translate = Callable[[str], APIError]
"""Makes the error of our taxonomy from an error event of vLLM."""
CountError = Callable[[ErrorCode], None]


class Events:
    """vLLM's events as bytes, which sse-starlette passes through (it would frame text a second time)."""

    def __init__(self, source: AsyncGenerator[str, None], translate: Translate, count_error: CountError) -> None:
        self._source = source
        self._translate = translate
        self._count_error = count_error
        self._first: asyncio.Future[str] | None = asyncio.ensure_future(anext(source))
        self._failed = False

    async def open(self) -> None:
        """Wait briefly for the first event. Raises APIError if it is an error."""
        try:
            await self._await_first()
        except BaseException:
            await self.aclose()
            raise

    async def _await_first(self) -> None:
        if self._first is None:
            return
        await asyncio.wait({self._first}, timeout=FIRST_EVENT_GRACE_S)
        if self._first.done() and self._first.result().startswith(ERROR_PREFIX):
            raise self._translate(self._first.result())

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> bytes:
        if self._failed:
            raise StopAsyncIteration
        first, self._first = self._first, None
        event = await (first if first is not None else anext(self._source))
        if not event.startswith(ERROR_PREFIX):
            return event.encode()
        self._failed = True
        error = self._translate(event)
        self._count_error(error.code)
        return error.event()

    async def aclose(self) -> None:
        """Close the source, which aborts the generation if it still runs."""
        if self._first is not None:
            self._first.cancel()
            with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                await self._first
        await self._source.aclose()


class StreamedAnswer(EventSourceResponse):
    """A streamed response that closes its events however it ends, even if it never began."""

    def __init__(self, content: AsyncIterable[bytes], events: Events, **options: Any) -> None:
        super().__init__(content, headers=_HEADERS, **options)
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._events.aclose()
