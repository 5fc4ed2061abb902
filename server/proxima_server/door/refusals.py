"""Sending requests away: early, with the reason, and with a time to come back."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from enum import StrEnum

from proxima_config.api_keys import ApiKey
from proxima_server.door import retry
from proxima_server.door.attainment import Attainment
from proxima_server.door.books import Books, EngineView, Entry
from proxima_server.door.classes import LAST_LEVEL
from proxima_server.door.deadlines import Deadlines
from proxima_server.door.limits import Exceeded, Usage
from proxima_server.errors import APIError, ErrorCode

_DRAINED_BEFORE_RETRY = 0.25
"""Share of the queue that should have gone before those who were sent away come back."""

COMPLETE_BY = 0.8
"""Share of the time for an answer within which the forecast wants it complete: the forecast is a lower bound, and those
who are let in next make all others slower."""


class Rejection(StrEnum):
    """Why the door did not let a request in."""

    KEY = "key"
    MODEL = "model"
    REQUESTS_PER_MIN = "requests_per_min"
    TOKENS_PER_MIN = "tokens_per_min"
    CONCURRENT = "concurrent"
    QUEUE_REQUESTS = "queue_requests"
    QUEUE_TOKENS = "queue_tokens"
    FORECAST = "forecast"
    LATE = "late"


class Refusals:
    """Each method returns if there is nothing against the request; otherwise it counts and raises APIError."""

    def __init__(self, books: Books, attainment: Attainment, draw: Callable[[], float]) -> None:
        self._books = books
        self._attainment = attainment
        self.draw = draw
        self.counts: Counter[Rejection] = Counter(dict.fromkeys(Rejection, 0))

    def count(self, why: Rejection) -> None:
        self.counts[why] += 1

    def check_model(self, key: ApiKey, model: object) -> None:
        """A request that names no model asks for the only one there is."""
        if key.models is None or not isinstance(model, str) or model in key.models:
            return
        self.count(Rejection.MODEL)
        raise APIError(
            ErrorCode.PERMISSION_DENIED, f"The API key '{key.name}' may not use the model '{model}'", param="model"
        )

    def check_limits(self, usage: Usage, tokens: int, now_s: float) -> None:
        """Takes the request and its tokens from what the key may use."""
        exceeded = usage.enter(now_s, tokens)
        if exceeded is None:
            return
        self.count(Rejection(exceeded.limit))
        wait_s = exceeded.wait_s
        if wait_s is None:
            wait_s = self._books.next_departure_s(usage.key.name)
        headers = {**usage.headers(now_s), **retry.headers(wait_s, self.draw())}
        raise APIError(ErrorCode.RATE_LIMIT_EXCEEDED, _limit_message(usage.key.name, exceeded), headers=headers)

    def check_room(self, entry: Entry, view: EngineView) -> None:
        """Whether the queue takes it."""
        exceeded = self._books.exceeded_bound(entry, view)
        if exceeded is not None:
            self.count(Rejection(f"queue_{exceeded}"))
            waiting = self._books.waiting(entry.waiter.level, view)
            raise self._queue_full(
                f"The queue is full: {waiting.sequences:.0f} requests wait, about {waiting.tokens:.0f} prompt tokens",
                self.retry_s(view, entry.waiter.level),
            )

    def check_start(self, start_s: float | None, within_s: float | None) -> None:
        """Whether the forecast says that it can start within `within_s`."""
        if start_s is None or within_s is None or start_s <= within_s:
            return
        self.count(Rejection.FORECAST)
        raise self._queue_full(
            f"The request would start in about {start_s:.1f} s at the earliest, past its deadline of {within_s:g} s",
            start_s - within_s,
        )

    def check_end(self, end_s: float | None, total_s: float | None) -> None:
        """Whether the forecast says that it can be complete within `total_s`."""
        if end_s is None or total_s is None or end_s <= total_s * COMPLETE_BY:
            return
        self.count(Rejection.FORECAST)
        raise self._queue_full(
            f"The answer would be complete in about {end_s:.1f} s at the earliest, too close to its deadline of "
            f"{total_s:g} s or past it",
            max(end_s - total_s, total_s / 4),
        )

    def check_attainment(self, entry: Entry, deadlines: Deadlines, now_s: float, view: EngineView) -> None:
        """Whether those on their way with such deadlines leave it a chance to meet its own."""
        level = entry.waiter.level
        for which, seconds in deadlines.timed():
            limit = self._attainment.limit((which, seconds), level, now_s)
            if not self._books.leaves_room(entry, limit):
                self.count(Rejection.LATE)
                raise self._queue_full(
                    f"Too many requests are on their way for a deadline of {seconds:g} s: most would miss it",
                    max(self.retry_s(view, level), seconds / 4),
                )

    def retry_s(self, view: EngineView, level: int = LAST_LEVEL) -> float:
        """Seconds after which somebody who was sent away should come back."""
        return self._books.drained_s(_DRAINED_BEFORE_RETRY, level, view)

    def _queue_full(self, message: str, wait_s: float) -> APIError:
        return APIError(ErrorCode.QUEUE_FULL, message, headers=retry.headers(wait_s, self.draw()))


def _limit_message(name: str, exceeded: Exceeded) -> str:
    if exceeded.limit == "concurrent":
        return f"The API key '{name}' may have {exceeded.allowed} requests at once, and has"
    what = exceeded.limit.partition("_")[0]
    told = f"The limit of the API key '{name}' of {exceeded.allowed} {what} per minute"
    if exceeded.wait_s is None or math.isinf(exceeded.wait_s):
        return f"{told} is smaller than this request alone ({exceeded.asked} {what})"
    return f"{told} is reached; this request needs {exceeded.asked}. Try again in {exceeded.wait_s:.3g} s"
