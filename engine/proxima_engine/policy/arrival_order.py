"""When each request would have started if all went in order of arrival.

Any order that does not let the pool idle gets through the same work in the same time. So a queue in order of arrival
would have come as far through the work that arrived as the real one has come through the work that it started.
"""

from __future__ import annotations

import heapq
from itertools import count

from proxima_engine.policy.view import SortKey


class ArrivalOrder:
    """Told who arrives, starts and leaves; says who would have started by now."""

    def __init__(self) -> None:
        self._queue: list[tuple[SortKey, int, str, float]] = []
        """Those who would still wait, and some who left: a heap of (key, ticket, request id, work)."""
        self._tickets: dict[str, int] = {}
        """Of those who would still wait."""
        self._work: dict[str, float] = {}
        """Of those who really wait."""
        self._ahead = 0.0
        """Work that was started and is not accounted for by those who would have."""
        self._count = count()

    def __contains__(self, request_id: str) -> bool:
        """Whether it would still wait."""
        return request_id in self._tickets

    def clear(self) -> None:
        self._queue.clear()
        self._tickets.clear()
        self._work.clear()
        self._ahead = 0.0

    def arrive(self, request_id: str, key: SortKey, work: float) -> None:
        """``work`` in any unit, the same for all."""
        self.leave(request_id)
        ticket = self._tickets[request_id] = next(self._count)
        self._work[request_id] = work
        heapq.heappush(self._queue, (key, ticket, request_id, work))

    def start(self, request_id: str) -> None:
        """Nothing happens where it does not wait."""
        self._ahead += self._work.pop(request_id, 0.0)

    def leave(self, request_id: str) -> None:
        """It goes without having started. Nothing happens where it does not wait."""
        work = self._work.pop(request_id, None)
        if work is not None and self._tickets.pop(request_id, None) is None:
            # It would have started, and somebody else does in its place.
            self._ahead += work

    def advance(self) -> list[str]:
        """Those who really wait and would have started since the last call."""
        passed: list[str] = []
        while self._queue and self._ahead > 0:
            _, ticket, request_id, work = heapq.heappop(self._queue)
            if self._tickets.get(request_id) != ticket:
                continue
            del self._tickets[request_id]
            self._ahead -= work
            if request_id in self._work:
                passed.append(request_id)
        if not self._queue:
            self._ahead = min(self._ahead, 0.0)
        return passed
