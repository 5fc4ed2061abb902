"""Rates measured from finished steps."""

from __future__ import annotations

HALF_LIFE_S = 10.0


class DecayingRate:
    """Events per second, with older events forgotten exponentially; time comes in as an argument."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._span_s = 0.0
        self._last_s: float | None = None

    def add(self, now_s: float, events: float) -> None:
        if self._last_s is not None:
            elapsed_s = max(0.0, now_s - self._last_s)
            keep = 0.5 ** (elapsed_s / HALF_LIFE_S)
            self._weight = self._weight * keep + events
            self._span_s = self._span_s * keep + elapsed_s
        self._last_s = now_s

    def rest(self) -> None:
        """Until the next addition there is nothing to do, and that time counts for nothing."""
        self._last_s = None

    def per_s(self) -> float:
        """While there was something to do; 0 until time has passed between two additions."""
        return self._weight / self._span_s if self._span_s > 0 else 0.0
