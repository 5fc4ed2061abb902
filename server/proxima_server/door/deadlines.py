"""Until when a request may wait, start to answer, and be done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from proxima_config.api_keys import ApiKey
from proxima_config.settings import DeadlineSettings
from proxima_server.errors import APIError, ErrorCode

HEADER = "x-request-timeout-ms"
FIELD = "timeout"
"""Of the body, in seconds. OpenAI's clients keep an argument of this name to themselves; `extra_body` sends it."""

MAX_TIMEOUT_S = 86_400.0
_MOST_DIGITS = 20
_LOOK_AGAIN_S = 0.5


class Deadline(StrEnum):
    QUEUE = "queue"
    FIRST_TOKEN = "first_token"  # noqa: S105 - a token of text
    TOTAL = "total"


_UNTIL = {
    Deadline.QUEUE: "its computation started",
    Deadline.FIRST_TOKEN: "its first token",
    Deadline.TOTAL: "its answer was complete",
}


@dataclass(frozen=True)
class Deadlines:
    """Seconds from arrival; None for none."""

    queue_s: float | None
    first_token_s: float | None
    total_s: float | None
    total_asked: bool = False
    """The request itself asked for that total."""

    def timed(self) -> list[tuple[Deadline, float]]:
        """Those there are."""
        every = zip(Deadline, (self.queue_s, self.first_token_s, self.total_s), strict=True)
        return [(which, seconds) for which, seconds in every if seconds is not None]

    def earliest(self) -> float | None:
        """By when the computation has to start, whatever happens then."""
        return min((seconds for _, seconds in self.timed()), default=None)


def deadlines_of(settings: DeadlineSettings, key: ApiKey, asked_s: float | None) -> Deadlines:
    """Those of the key before those of the deployment; the request may ask for a shorter total."""

    def chosen(own: float | None, general: float) -> float | None:
        return (general if own is None else own) or None

    total_s = chosen(key.request_timeout_s, settings.request_timeout_s)
    asked = asked_s is not None and (total_s is None or asked_s < total_s)
    if asked:
        total_s = asked_s
    return Deadlines(
        chosen(key.queue_timeout_s, settings.queue_timeout_s),
        chosen(key.first_token_timeout_s, settings.first_token_timeout_s),
        total_s,
        total_asked=asked,
    )


def asked_timeout_s(header: str | None, body: dict[str, Any]) -> float | None:
    """The total that the request asks for; takes `timeout` out of the body. Raises APIError."""
    asked = []
    if header is not None:
        digits = header.isascii() and header.isdigit() and len(header) <= _MOST_DIGITS
        if not digits or not 0 < int(header) <= MAX_TIMEOUT_S * 1000:
            shown = header[:40]
            raise APIError(
                ErrorCode.INVALID_VALUE,
                f"Invalid header '{HEADER}': it must be whole milliseconds from 1 to {MAX_TIMEOUT_S * 1000:.0f} "
                f"(got '{shown}')",
                param=HEADER,
            )
        asked.append(int(header) / 1000)
    given = body.pop(FIELD, None)
    if given is not None:
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given <= MAX_TIMEOUT_S:
            raise APIError(
                ErrorCode.INVALID_VALUE,
                f"Invalid '{FIELD}': it must be seconds above 0, up to {MAX_TIMEOUT_S:.0f} (got {str(given)[:40]})",
                param=FIELD,
            )
        asked.append(float(given))
    return min(asked, default=None)


class Watch:
    """Ends what one request is at when one of its deadlines has passed.

    `waits` tells whether the request may still be waiting for its computation, `has_token` whether its first token has
    come; both are asked at the deadline only. Times are those of the running event loop.
    """

    def __init__(
        self,
        deadlines: Deadlines,
        arrived_s: float,
        *,
        waits: Callable[[], bool],
        has_token: Callable[[], bool],
        expired: Callable[[Deadline], None],
    ) -> None:
        self._deadlines = deadlines
        self._arrived_s = arrived_s
        self._waits = waits
        self._has_token = has_token
        self._tell = expired
        self._loop = asyncio.get_running_loop()
        self._scope: asyncio.Timeout | None = None
        self._expired: Deadline | None = None
        self._timers: dict[Deadline, asyncio.TimerHandle] = {}
        for which, after_s, check in (
            (Deadline.QUEUE, deadlines.queue_s, self._check_queue),
            (Deadline.FIRST_TOKEN, deadlines.first_token_s, self._check_first_token),
            (Deadline.TOTAL, deadlines.total_s, self._check_total),
        ):
            if after_s is not None:
                self._timers[which] = self._loop.call_at(arrived_s + after_s, check)

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        """Cancels the body when a deadline passes. Raises APIError deadline_exceeded, then and from then on."""
        self._raise_if_expired()
        try:
            async with asyncio.timeout(None) as scope:
                self._scope = scope
                yield
        except Exception:
            # vLLM makes an answer of its own from being cancelled: "client disconnected".
            if scope.expired():
                self._raise_if_expired()
            raise
        finally:
            self._scope = None
        if scope.expired():
            self._raise_if_expired()

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()

    def _check_queue(self) -> None:
        if self._has_token():
            return
        if self._waits():
            self._expire(Deadline.QUEUE)
        else:
            self._timers[Deadline.QUEUE] = self._loop.call_later(_LOOK_AGAIN_S, self._check_queue)

    def _check_first_token(self) -> None:
        if not self._has_token():
            self._expire(Deadline.FIRST_TOKEN)

    def _check_total(self) -> None:
        self._expire(Deadline.TOTAL)

    def _expire(self, which: Deadline) -> None:
        if self._expired is not None:
            return
        self._expired = which
        self.close()
        self._tell(which)
        if self._scope is not None:
            self._scope.reschedule(self._loop.time())

    def _raise_if_expired(self) -> None:
        if self._expired is None:
            return
        limit_s = getattr(self._deadlines, f"{self._expired}_s")
        raise APIError(
            ErrorCode.DEADLINE_EXCEEDED, f"The deadline of {limit_s:g} s until {_UNTIL[self._expired]} has passed"
        )
