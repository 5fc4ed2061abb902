"""An event loop whose clock jumps to the next timer whenever nothing else is to do.

Delays of minutes pass at once and have exactly the length they were given, so that times can be asserted exactly. All
that runs on it must talk through the loop itself: in-process servers and clients over Unix sockets qualify, because
the kernel hands such bytes over within the call that sends them; threads and TCP do not.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_GRID = 1 << 20


class _JumpingSelector(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            message = "everything waits for something that never comes"
            raise AssertionError(message)
        # Onto a grid of binary fractions, up to the rounding of the sum: delays that lie on it stay exact.
        self.now_s = math.ceil((self.now_s + max(0.0, timeout)) * _GRID - 1e-6) / _GRID
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


def run(main: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, in virtual time that starts at 0."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
