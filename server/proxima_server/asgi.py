"""Plain ASGI middleware: no buffering, so streams and disconnects pass through untouched."""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Receive, Scope, Send

_SLASHES = re.compile("/{2,}")
_RAW_SLASHES = re.compile(b"/{2,}")


class NormalizePath:
    """`//v1//models/` is `/v1/models`: clients whose base URL ends in a slash, or who add one, are common.

    So is `/llm/v1/models` where the root path is `/llm`: the router takes it for the same, and who may ask for it is
    decided before the router.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path, root = scope["path"], scope.get("root_path", "")
            if "//" in path or (path.endswith("/") and path != "/"):
                scope["path"] = _SLASHES.sub("/", path).rstrip("/") or "/"
                scope["raw_path"] = _RAW_SLASHES.sub(b"/", scope.get("raw_path") or b"").rstrip(b"/") or b"/"
            while root and f"{scope['path']}/".startswith(f"{root}/"):
                scope["path"] = scope["path"].removeprefix(root) or "/"
                scope["raw_path"] = (scope.get("raw_path") or b"").removeprefix(root.encode()) or b"/"
        await self.app(scope, receive, send)


class AnswerHead:
    """HEAD is answered as GET is; the server leaves the body out."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self.app(scope, receive, send)
