"""Stop working for a client that hung up."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

from proxima_server.errors import APIError, ErrorCode

T = TypeVar("T")


async def until_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client disconnects (APIError client_closed_request).

    The body of `request` must have been read: the only message still to come is then the disconnect.
    """
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise APIError(ErrorCode.CLIENT_CLOSED_REQUEST, "The client went away")
    finally:
        gone.cancel()
        if not working.done():
            working.cancel()
            # Cancelling sends an abort to the engine; wait until it is sent.
            await asyncio.gather(working, return_exceptions=True)


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
