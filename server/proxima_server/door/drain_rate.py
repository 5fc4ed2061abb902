"""How fast the engine gets through what waits, measured at the door."""

from __future__ import annotations

import math

HALF_LIFE_S = 60.0
MIN_EVIDENCE = 8.0
"""Departures that have to be seen, older ones counting less, before anything is said."""
BOUND_SIGMAS = 2.0


class DrainRate:
    """Departures per second while somebody waits, older ones forgotten; time comes in as an argument.

    Time in which nobody waits does not count: the rate would then be that of the arrivals.
    """

    def __init__(self) -> None:
        self._departures = 0.0
        self._span_s = 0.0
        self._at_s = 0.0

    def pass_time(self, now_s: float, *, busy: bool) -> None:
        """From the last call until now, somebody waited or not."""
        elapsed_s = max(0.0, now_s - self._at_s)
        keep = 0.5 ** (elapsed_s / HALF_LIFE_S)
        self._departures *= keep
        self._span_s = self._span_s * keep + (elapsed_s if busy else 0.0)
        self._at_s = now_s

    def depart(self, sequences: int) -> None:
        self._departures += sequences

    def per_s(self) -> float | None:
        """The measured rate; None without evidence."""
        if self._departures < MIN_EVIDENCE or not self._span_s:
            return None
        return self._departures / self._span_s

    def optimistic_per_s(self) -> float | None:
        """Upper end of what the true rate may be, taking departures for a Poisson process: nobody is refused because
        too little has been seen."""
        if self.per_s() is None:
            return None
        return (self._departures + BOUND_SIGMAS * math.sqrt(self._departures) + BOUND_SIGMAS) / self._span_s
