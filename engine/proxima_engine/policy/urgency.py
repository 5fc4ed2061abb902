"""Who goes first: the order in which waiting requests are considered.

Within a priority level of vLLM's there are four bands:

* *resumed*: it has given up its blocks in the middle of its answer; its client looks at a stream that stands still.
* *overdue*: it has waited for the age bound. Nobody in a later band starts before it any more. Where a queue in order
  of arrival would be longer than the bound everybody would come to be overdue, so there the bound grows with it.
* *on time*: it can still have its first token within its target. While nobody waits who has missed it, they go by when
  they have to start, the costly a little later: all of them make it that way if it can be done (earliest deadline
  first). From then on cheapest first: when not all can make it, that makes the most of them do (Moore 1968 drops the
  longest; so does this order, by letting time run out on them).
* *late*: it has missed its target, and one second more changes little. Postponed, not abandoned: it goes in order of
  arrival when nobody on time wants the blocks, and becomes overdue in the end.

First go all who are resumed, then all who are overdue, whatever their class: that is what bounds the wait of the least
urgent one. Then come the classes one after the other, in each those on time before the late.

What a request costs is the space in the pool that it is expected to take, times how long: a part of the pool's time.
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
from proxima_engine.policy.arrival_order import ArrivalOrder
from proxima_engine.policy.view import WaitingRequest


class Band(IntEnum):
    RESUMED = 0
    OVERDUE = 1
    ON_TIME = 2
    LATE = 3


GROWTH = 1.25
"""How many times as long as in order of arrival a request may wait where that is longer than the age bound."""
COST_WEIGHT = 8
"""By how many times the time of the whole pool that it takes one goes later than others who have to start with it.
With 0 one large prompt makes several small ones late that come right after it."""
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
"""(what counts in its band, arrival in seconds, request id): smaller goes first."""


@dataclass(slots=True)
class _Place:
    request: WaitingRequest
    section: Section
    rank: Rank
    due: Rank
    """Of one on time: by when it has to start, later by what it costs."""
    ticket: int
    """Tells apart those who come back, or others who come under the same id."""
    bound_s: float
    """How long it may wait until it is overdue, as far as that is known."""


class UrgencyQueue:
    """Everybody who waits, in order; changed by arrivals, departures and time only."""

    def __init__(self, max_wait_s: float) -> None:
        self._max_wait_s = max_wait_s
        self._arrival_order = ArrivalOrder()
        self._places: dict[str, _Place] = {}
        self._sections: dict[Section, list[Rank]] = {}
        """The ranks of each, sorted."""
        self._due: dict[Section, list[Rank]] = {}
        """Of those on time, the other order of the same requests."""
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
        self._due.clear()
        self._arrival_order.clear()
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
        pool_s: float = 0.0,
        resumes_after_s: float = 0.0,
    ) -> None:
        """Replaces a request of the same id. ``cost`` in block-steps, ``pool_s`` the same in seconds of the whole pool;
        one that starts after ``start_by_s`` is late by its last token. Those who resume go in order of
        ``resumes_after_s``, then of arrival."""
        self.remove(request.request_id)
        ticket = next(self._tickets)
        bound_s = self._max_wait_s
        overdue_s = request.arrival_s + bound_s
        if request.output_tokens:
            self._insert(request, Band.RESUMED, resumes_after_s, ticket, bound_s)
            return
        if now_s >= overdue_s:
            self._insert(request, Band.OVERDUE, 0.0, ticket, bound_s)
            return
        heapq.heappush(self._turns, (overdue_s, ticket, request.request_id, Band.OVERDUE))
        start_by_s = min(start_by_s, request.deadline_s)
        if now_s > start_by_s:
            self._insert(request, Band.LATE, 0.0, ticket, bound_s)
            return
        due_s = start_by_s + COST_WEIGHT * pool_s
        self._insert(request, Band.ON_TIME, cost, ticket, bound_s, due_s)
        # On time is who comes at the target itself, late whoever comes after it.
        late_s = math.nextafter(start_by_s, math.inf)
        heapq.heappush(self._turns, (late_s, ticket, request.request_id, Band.LATE))

    def queue_up(self, request_id: str, cost: float) -> None:
        """One that was added has just arrived. Its age bound is no shorter than `GROWTH` times its wait in order of
        arrival then; one whose beginnings are not known, as after a restart, has the age bound as it is set."""
        place = self._places[request_id]
        # With a bound of 0 all go in order of arrival, and in that nobody is passed.
        if self._max_wait_s and place.section[2] in (Band.ON_TIME, Band.LATE):
            self._arrival_order.arrive(request_id, place.request.key, cost)

    def start(self, request_id: str) -> None:
        """It starts, and is removed next."""
        self._arrival_order.start(request_id)

    def bound_s(self, request_id: str) -> float:
        """How long one that waits may do so until it is overdue; inf while it would wait in order of arrival, too."""
        return math.inf if request_id in self._arrival_order else self._places[request_id].bound_s

    def remove(self, request_id: str) -> None:
        """Nothing happens where it is not there."""
        self._arrival_order.leave(request_id)
        self._take_out(request_id)

    def _take_out(self, request_id: str) -> None:
        place = self._places.pop(request_id, None)
        if place is not None:
            _take(self._sections, place.section, place.rank)
            if place.section[2] is Band.ON_TIME:
                _take(self._due, place.section, place.due)
            self._long -= place.request.request_class is RequestClass.LONG

    def advance(self, now_s: float) -> bool:
        """Move everybody whose time has come to another band; whether anybody moved."""
        moved = False
        for request_id in self._arrival_order.advance():
            passed = self._places[request_id]
            arrival_s = passed.request.arrival_s
            passed.bound_s = max(self._max_wait_s, GROWTH * (now_s - arrival_s))
            heapq.heappush(self._turns, (arrival_s + passed.bound_s, passed.ticket, request_id, Band.OVERDUE))
        while self._turns and self._turns[0][0] <= now_s:
            _, ticket, request_id, band = heapq.heappop(self._turns)
            place = self._places.get(request_id)
            if place is None or place.ticket != ticket or place.section[2] is Band.OVERDUE:
                continue
            if band is Band.OVERDUE and now_s < place.request.arrival_s + self.bound_s(request_id):
                # Its bound has grown, or has yet to be known.
                continue
            self._take_out(request_id)
            self._insert(place.request, band, 0.0, ticket, place.bound_s)
            moved = True
        return moved

    def in_order(self) -> Iterator[tuple[Band, WaitingRequest]]:
        """Most urgent first. The queue must not change meanwhile."""
        can_be_done = all(band is not Band.LATE for _, _, band in self._sections)
        for section, by_cost in sorted(self._sections.items()):
            band = section[2]
            for rank in self._due[section] if can_be_done and band is Band.ON_TIME else by_cost:
                yield band, self._places[rank[2]].request

    def _insert(
        self, request: WaitingRequest, band: Band, cost: float, ticket: int, bound_s: float, due_s: float = 0.0
    ) -> None:
        rank, due = ((first, request.arrival_s, request.request_id) for first in (cost, due_s))
        level = CLASS_LEVEL[request.request_class] if band > Band.OVERDUE else _ABOVE_ALL_CLASSES
        section = (request.priority, level, band)
        self._places[request.request_id] = _Place(request, section, rank, due, ticket, bound_s)
        insort(self._sections.setdefault(section, []), rank)
        if band is Band.ON_TIME:
            insort(self._due.setdefault(section, []), due)
        self._long += request.request_class is RequestClass.LONG


def _take(sections: dict[Section, list[Rank]], section: Section, rank: Rank) -> None:
    ranks = sections[section]
    del ranks[bisect_left(ranks, rank)]
    if not ranks:
        # Priorities are what clients make of them, and each plan goes through all sections.
        del sections[section]
