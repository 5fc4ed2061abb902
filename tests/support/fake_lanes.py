"""A device whose queues run when a test says so, in any order that marks and waits allow."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class FakeMark:
    reached_ms: float | None = None

    def query(self) -> bool:
        return self.reached_ms is not None

    def elapsed_time(self, end_event: FakeMark) -> float:
        return end_event.reached_ms - self.reached_ms


class OutOfMemoryInTestError(Exception):
    """Raised when work was queued."""


class FakeLane:
    """As a CUDA stream, but that nothing runs before `advance`; all work takes a millisecond of `clock`."""

    def __init__(self, clock: list[float]) -> None:
        self._clock = clock
        self._queue: deque[Callable[[], None] | FakeMark] = deque()
        self.fails_next = False

    def run(self, work: Callable[[], None]) -> None:
        self._queue.append(lambda: self._timed(work))
        if self.fails_next:
            self.fails_next = False
            raise OutOfMemoryInTestError

    def mark(self, *, timed: bool = False) -> FakeMark:
        mark = FakeMark()
        self._queue.append(lambda: self._reach(mark))
        return mark

    def wait(self, mark: FakeMark) -> None:
        self._queue.append(mark)

    @property
    def is_idle(self) -> bool:
        return not self._queue

    def advance(self) -> bool:
        """Run what is next; False if there is nothing, or it waits for another lane."""
        if not self._queue:
            return False
        first = self._queue[0]
        if isinstance(first, FakeMark):
            if not first.query():
                return False
        else:
            first()
        self._queue.popleft()
        return True

    def _timed(self, work: Callable[[], None]) -> None:
        work()
        self._clock[0] += 1

    def _reach(self, mark: FakeMark) -> None:
        mark.reached_ms = self._clock[0]
