"""A histogram for one event loop: half a microsecond per value, where a thread-safe one takes several."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


class Histogram:
    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    @property
    def bounds(self) -> Sequence[float]:
        """Upper bounds of the buckets; values above the last are counted beyond it."""
        return self._bounds

    @property
    def counts(self) -> Sequence[int]:
        """Values in each bucket, and in the one beyond."""
        return self._counts

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, values up to it) as Prometheus shows them, the last bound being `+Inf`."""
        bounds = [*map(str, self._bounds), "+Inf"]
        return list(zip(bounds, accumulate(self._counts), strict=True))
