"""Request bodies of bounded size, whoever reads them."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proxima_server.errors import APIError, ErrorCode


class LimitBody:
    """Refuses what announces itself as too large before it is read, and the rest as soon as it is."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self.app = app
        self._max_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdecimal() and int(announced) > self._max_bytes:
            await self._error().response()(scope, receive, send)
            return
        read = 0

        async def count() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._max_bytes:
                # Raised inside of the route that reads, and answered as any error of a route.
                raise self._error()
            return message

        await self.app(scope, count, send)

    def _error(self) -> APIError:
        return APIError(ErrorCode.REQUEST_TOO_LARGE, f"The request body is larger than {self._max_bytes} bytes")
