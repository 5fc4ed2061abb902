"""Queues of work on a device, and marks in them: CUDA's streams and events, as little of them as copies need."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol, TypeAlias

import torch

Mark: TypeAlias = torch.cuda.Event
"""A place in a lane: `query` says whether all before it is done, `elapsed_time` the milliseconds from it to another."""


class Lane(Protocol):
    """Work runs in the order in which it was queued; work of two lanes runs in any order, but for what `wait` says."""

    def run(self, work: Callable[[], None]) -> None: ...

    def mark(self, *, timed: bool = False) -> Mark:
        """The end of what is queued now."""
        ...

    def wait(self, mark: Mark) -> None:
        """What is queued from now on runs after all that is before the mark."""
        ...


class CudaLane:
    """`run` calls `work` at once, which launches kernels and copies on the stream and returns."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream

    def run(self, work: Callable[[], None]) -> None:
        with torch.cuda.stream(self._stream):
            work()

    def mark(self, *, timed: bool = False) -> Mark:
        event = torch.cuda.Event(enable_timing=timed)
        event.record(self._stream)
        return event

    def wait(self, mark: Mark) -> None:
        self._stream.wait_event(mark)


class CopyTimes(NamedTuple):
    """In seconds."""

    held_s: float
    """For which the forward pass was held up."""
    under_way_s: float
    """For which blocks were on their way between device and host, held up by that or not."""


class HoldUps:
    """How long lanes were busy with something or waited for it."""

    def __init__(self) -> None:
        self._timed: deque[tuple[Mark, Mark]] = deque()

    @contextmanager
    def of(self, lane: Lane) -> Iterator[None]:
        """From what is queued in `lane` now to what is queued there at the end."""
        begun = lane.mark(timed=True)
        yield
        self._timed.append((begun, lane.mark(timed=True)))

    def take_seconds(self) -> float:
        """Of those that have ended since the last call."""
        seconds = 0.0
        while self._timed and self._timed[0][1].query():
            begun, ended = self._timed.popleft()
            seconds += begun.elapsed_time(ended) / 1000
        return seconds


class TimedLane:
    """A lane that counts for how long it works; what it waits for others is not work."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._busy = HoldUps()

    def run(self, work: Callable[[], None]) -> None:
        with self._busy.of(self._lane):
            self._lane.run(work)

    def mark(self, *, timed: bool = False) -> Mark:
        return self._lane.mark(timed=timed)

    def wait(self, mark: Mark) -> None:
        self._lane.wait(mark)

    def take_seconds(self) -> float:
        """Of work that has ended since the last call."""
        return self._busy.take_seconds()
