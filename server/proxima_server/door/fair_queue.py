"""Turns between tenants by weight: start-time fair queueing (Goyal, Vin, Cheng 1996), one virtual clock per level.

A request of tenant t with cost c gets the start tag max(virtual time, finish tag of t's previous one) and the finish
tag start + c / weight(t). The smallest start tag goes first, and the virtual time is the start tag of the one that went
last. So tenants that always have somebody waiting share what is let in by weight, within one request of each, and a
tenant that was away gets no credit for it. More urgent levels go strictly first, except past those who have waited for
too long.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count


@dataclass(slots=True, eq=False)
class Waiter:
    """Somebody who waits. `level`: 0 goes first; raised when it has waited for too long."""

    tenant: str
    weight: float
    level: int
    cost: float
    arrived_s: float
    start_tag: float = 0.0
    home: int = 0
    """The level that it came with."""
    waiting: bool = True


@dataclass
class _Clock:
    virtual: float = 0.0
    finish_tags: dict[str, float] = field(default_factory=dict)
    heap: list[tuple[float, int, Waiter]] = field(default_factory=list)


class FairQueue:
    """`levels` classes of urgency; who has waited `max_wait_s` counts as most urgent of all that wait."""

    def __init__(self, levels: int, max_wait_s: float) -> None:
        self._clocks = [_Clock() for _ in range(levels)]
        self._max_wait_s = max_wait_s
        self._by_age: deque[Waiter] = deque()
        self._tickets = count()
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def push(self, waiter: Waiter) -> None:
        waiter.home = waiter.level
        clock = self._clocks[waiter.level]
        waiter.start_tag = self._start_tag(waiter)
        clock.finish_tags[waiter.tenant] = waiter.start_tag + waiter.cost / waiter.weight
        heapq.heappush(clock.heap, (waiter.start_tag, next(self._tickets), waiter))
        self._by_age.append(waiter)
        self._waiting += 1

    def before(self, waiter: Waiter) -> Iterator[Waiter]:
        """Those whose turns would come before that of `waiter`, did it come now and nobody after it."""
        tag = self._start_tag(waiter)
        for level, clock in enumerate(self._clocks[: waiter.level + 1]):
            for start_tag, _, each in clock.heap:
                if each.waiting and (level < waiter.level or start_tag <= tag):
                    yield each

    def remove(self, waiter: Waiter) -> None:
        """Somebody gave up waiting; nothing happens if it has gone already. Its turn is not given back: whoever comes
        and leaves again must not move the turns of others."""
        if waiter.waiting:
            waiter.waiting = False
            self._waiting -= 1

    def head(self, now_s: float) -> Waiter | None:
        """Who goes next; stays in the queue."""
        while self._by_age and not self._by_age[0].waiting:
            self._by_age.popleft()
        most_urgent = next((found for clock in self._clocks if (found := _top(clock)) is not None), None)
        if most_urgent is None:
            return None
        oldest = self._by_age[0]
        if now_s - oldest.arrived_s >= self._max_wait_s and oldest.level >= most_urgent.level:
            # Counted where it is let in, so that a crowd of the old does not go in all at once.
            oldest.level = most_urgent.level
            return oldest
        return most_urgent

    def pop(self, waiter: Waiter) -> None:
        """`waiter`, from `head`, goes in."""
        self.remove(waiter)
        clock = self._clocks[waiter.home]
        # One that goes because of its age may have earlier ones in front of it, whose turns it does not move.
        if _top(clock) is None or clock.heap[0][0] >= waiter.start_tag:
            clock.virtual = max(clock.virtual, waiter.start_tag)

    def charge(self, waiter: Waiter, cost: float) -> None:
        """What `waiter` cost in the end is `cost` more than was assumed when it came; less if negative."""
        self._clocks[waiter.home].finish_tags[waiter.tenant] += cost / waiter.weight

    def _start_tag(self, waiter: Waiter) -> float:
        clock = self._clocks[waiter.level]
        return max(clock.virtual, clock.finish_tags.get(waiter.tenant, 0.0))


def _top(clock: _Clock) -> Waiter | None:
    while clock.heap and not clock.heap[0][2].waiting:
        heapq.heappop(clock.heap)
    return clock.heap[0][2] if clock.heap else None
