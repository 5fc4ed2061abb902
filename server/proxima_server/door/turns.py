"""Who goes from the door into the engine, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from proxima_server.door.books import Books, EngineView, Entry, Load
from proxima_server.door.classes import LAST_LEVEL
from proxima_server.door.fair_queue import FairQueue, Waiter
from proxima_server.door.visit import Visit

LOOK_AGAIN_S = 0.1
"""How often the newest snapshot is looked at while somebody waits: as often as there may be a new one."""


class Turns:
    """Lets everybody in at once, or, where turns are `kept`, only as many as the scheduler needs to choose from."""

    def __init__(
        self, books: Books, view: Callable[[], EngineView], clock: Callable[[], float], *, kept: bool, max_wait_s: float
    ) -> None:
        self._books = books
        self._view = view
        self._clock = clock
        self._kept = kept
        self._queue = FairQueue(LAST_LEVEL + 1, max_wait_s)
        self._visits: dict[Waiter, Visit] = {}
        self._timer: asyncio.TimerHandle | None = None

    def waiting(self) -> list[Visit]:
        return list(self._visits.values())

    def before(self, entry: Entry) -> Load:
        """What waits at the door and goes in before `entry`, did it come now."""
        load = Load()
        for waiter in self._queue.before(entry.waiter):
            load.add(self._visits[waiter].entry)
        return load

    def join(self, visit: Visit) -> None:
        """Wait for the turn, which sets `visit.granted`; at once if there is room."""
        self._books.move(visit.entry, "door")
        self._visits[visit.entry.waiter] = visit
        self._queue.push(visit.entry.waiter)
        self.let_in()

    def leave(self, visit: Visit, cost: float, *, served: bool) -> None:
        """Out of the engine, or gone before its turn; it cost `cost` more than was expected."""
        self._queue.remove(visit.entry.waiter)
        self._queue.charge(visit.entry.waiter, cost)
        self._visits.pop(visit.entry.waiter, None)
        self._books.pass_time(self._clock(), self._view())
        self._books.move(visit.entry, None, served=served, more_cost=cost)
        self.let_in()

    def let_in(self) -> None:
        """Grant all turns that have come."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_s, view = self._clock(), self._view()
        self._books.pass_time(now_s, view)
        while (waiter := self._queue.head(now_s)) is not None:
            if self._kept and not self._books.takes_more(waiter.level, view):
                self._timer = asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self.let_in)
                return
            visit = self._visits.pop(waiter)
            self._queue.pop(waiter)
            self._books.move(visit.entry, "engine")
            visit.granted.set()
