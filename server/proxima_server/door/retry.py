"""When to come back: the headers of every 429 and 503.

OpenAI's clients read `retry-after-ms` first, then `retry-after`, and follow `x-should-retry` against their own rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_RETRY_AFTER_S = 120.0
MIN_RETRY_AFTER_S = 0.05
JITTER = 0.25
"""Largest share added: those refused together must not come back together, and none too early."""

_RETRIED = frozenset({429, 503})


def headers(wait_s: float, draw: float) -> dict[str, str]:
    """Headers for a client that should come back in `wait_s`; `draw` is random, from 0 to 1."""
    if math.isinf(wait_s):
        return {"x-should-retry": "false"}
    jittered = max(MIN_RETRY_AFTER_S, wait_s) * (1 + JITTER * draw)
    bounded_s = min(MAX_RETRY_AFTER_S, jittered)
    return {
        "retry-after-ms": str(math.ceil(bounded_s * 1000)),
        "retry-after": str(math.ceil(bounded_s)),
        "x-should-retry": "true",
    }


class SayWhenToRetry:
    """Completes the headers of 429 and 503 answers, from wherever in the application they come.

    An answer may say itself how many seconds it wants in `retry-after`; then only the jitter and the finer header are
    added. Otherwise `wait_s` tells what the queue needs.
    """

    def __init__(self, app: ASGIApp, wait_s: Callable[[], float], draw: Callable[[], float]) -> None:
        self.app = app
        self._wait_s = wait_s
        self._draw = draw

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def complete(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] in _RETRIED:
                self._complete(MutableHeaders(scope=message))
            await send(message)

        await self.app(scope, receive, complete)

    def _complete(self, found: MutableHeaders) -> None:
        if "retry-after-ms" in found or found.get("x-should-retry") == "false":
            return
        said = found.get("retry-after", "")
        wait_s = float(said) if said.isdigit() else self._wait_s()
        for name, value in headers(wait_s, self._draw()).items():
            found[name] = value
