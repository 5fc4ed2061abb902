"""Who goes first: the order in which waiting requests are considered.

Within a priority level of vLLM's there are four bands:

* *resumed*: it has given up its blocks in the middle of its answer; its client looks at a stream that stands still.
* *overdue*: it has waited for the age bound. Nobody in a later band starts before it any more.
* *on time*: it can still have its first token within its target; cheapest first. When not all can make it, that makes
  the most of them do (Moore 1968 drops the longest; so does this order, by letting time run out on them).
* *late*: it has missed its target, and one second more changes little. Postponed, not abandoned: it goes in order of
  arrival when nobody on time wants the blocks, and becomes overdue in the end.

First go all who are resumed, then all who are overdue, whatever their class: that is what bounds the wait of the least
urgent one. Then come the classes one after the other, in each those on time before the late.

What a request costs is the space in the pool that it is expected to take, times how long.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import count

from proxima_config.hints import RequestClass
from proxima_engine.policy.view import WaitingRequest


class Band(IntEnum):
    RESUMED = 0
    OVERDUE = 1
    ON_TIME = 2
    LATE = 3


CLASS_LEVEL = {
    RequestClass.PRIORITY: 0,
    RequestClass.DEFAULT: 1,
    RequestClass.LONG: 1,
    RequestClass.FLEX: 2,
}
"""Smaller goes first."""
_ABOVE_ALL_CLASSES = -1

Section = tuple[int, int, Band]
"""(priority, level of the class, band): smaller goes first."""
Rank = tuple[float, float, str]
"""(cost where it counts, arrival in seconds, request id): smaller goes first."""


@dataclass(slots=True)
class _Place:
    request: WaitingRequest
    section: Section
    rank: Rank
    ticket: int
    """Tells apart those who come back, or others who come under the same id."""


class UrgencyQueue:
    """Everybody who waits, in order; changed by arrivals, departures and time only."""

    def __init__(self, max_wait_s: float) -> None:
        self._max_wait_s = max_wait_s
        self._places: dict[str, _Place] = {}
        self._sections: dict[Section, list[Rank]] = {}
        """The ranks of each, sorted."""
        self._long = 0
        """How many of class long wait."""
        self._tickets = count()
        self._turns: list[tuple[float, int, str, Band]] = []
        """When somebody turns to another band: a heap of (time, ticket, request id, the new band)."""

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._places

    def clear(self) -> None:
        self._places.clear()
        self._sections.clear()
        self._long = 0
        self._turns.clear()

    @property
    def others_than_long(self) -> int:
        """How many wait who are not of class long."""
        return len(self._places) - self._long

    def add(
        self,
        request: WaitingRequest,
        cost: float,
        now_s: float,
        start_by_s: float = math.inf,
        *,
        resumes_after_s: float = 0.0,
    ) -> None:
        """Replaces a request of the same id. ``cost`` in block-steps; one that starts after ``start_by_s`` is late by
        its last token. Those who resume go in order of ``resumes_after_s``, then of arrival."""
        self.remove(request.request_id)
        ticket = next(self._tickets)
        overdue_s = request.arrival_s + self._max_wait_s
        if request.output_tokens:
            self._insert(request, Band.RESUMED, resumes_after_s, ticket)
            return
        if now_s >= overdue_s:
            self._insert(request, Band.OVERDUE, 0.0, ticket)
            return
        heapq.heappush(self._turns, (overdue_s, ticket, request.request_id, Band.OVERDUE))
        start_by_s = min(start_by_s, request.deadline_s)
        if now_s > start_by_s:
            self._insert(request, Band.LATE, 0.0, ticket)
            return
        self._insert(request, Band.ON_TIME, cost, ticket)
        # On time is who comes at the target itself, late whoever comes after it.
        late_s = math.nextafter(start_by_s, math.inf)
        heapq.heappush(self._turns, (late_s, ticket, request.request_id, Band.LATE))

    def remove(self, request_id: str) -> None:
        """Nothing happens where it is not there."""
        place = self._places.pop(request_id, None)
        if place is not None:
            ranks = self._sections[place.section]
            del ranks[bisect_left(ranks, place.rank)]
            self._long -= place.request.request_class is RequestClass.LONG

    def advance(self, now_s: float) -> bool:
        """Move everybody whose time has come to another band; whether anybody moved."""
        moved = False
        while self._turns and self._turns[0][0] <= now_s:
            _, ticket, request_id, band = heapq.heappop(self._turns)
            place = self._places.get(request_id)
            if place is None or place.ticket != ticket or place.section[2] is Band.OVERDUE:
                continue
            self.remove(request_id)
            self._insert(place.request, band, 0.0, ticket)
            moved = True
        return moved

    def in_order(self) -> Iterator[tuple[Band, WaitingRequest]]:
        """Most urgent first. The queue must not change meanwhile."""
        for section in sorted(self._sections):
            for rank in self._sections[section]:
                yield section[2], self._places[rank[2]].request

    def _insert(self, request: WaitingRequest, band: Band, cost: float, ticket: int) -> None:
        rank = (cost, request.arrival_s, request.request_id)
        level = CLASS_LEVEL[request.request_class] if band > Band.OVERDUE else _ABOVE_ALL_CLASSES
        section = (request.priority, level, band)
        self._places[request.request_id] = _Place(request, section, rank, ticket)
        insort(self._sections.setdefault(section, []), rank)
        self._long += request.request_class is RequestClass.LONG
