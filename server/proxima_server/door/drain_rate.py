"""How fast the engine gets through what waits, measured at the door."""

from __future__ import annotations

import math

HALF_LIFE_S = 60.0
MIN_EVIDENCE = 8.0
"""Departures that have to be seen, older ones counting less, before anything is said."""
BOUND_SIGMAS = 2.0


class DrainRate:
    """Departures per second while somebody waits, older ones forgotten; time comes in as an argument.

    Time in which nobody waits does not count: the rate would then be that of the arrivals. What departed is counted in
    requests and in what they cost, since neither alone foretells how fast it goes once others come: behind long answers
    short ones seem slow by the first, behind short prompts long ones by the second.
    """

    def __init__(self) -> None:
        self._departures = 0.0
        self._cost = 0.0
        self._span_s = 0.0
        self._at_s = 0.0

    def pass_time(self, now_s: float, *, busy: bool) -> None:
        """From the last call until now, somebody waited or not."""
        elapsed_s = max(0.0, now_s - self._at_s)
        keep = 0.5 ** (elapsed_s / HALF_LIFE_S)
        self._departures *= keep
        self._cost *= keep
        self._span_s = self._span_s * keep + (elapsed_s if busy else 0.0)
        self._at_s = now_s

    def depart(self, sequences: int, cost: float) -> None:
        """`cost` in tokens of prompt and answer."""
        self._departures += sequences
        self._cost += cost

    def per_s(self) -> float | None:
        """The measured rate; None without evidence."""
        if self._departures < MIN_EVIDENCE or not self._span_s:
            return None
        return self._departures / self._span_s

    def earliest_s(self, sequences: float, cost: float) -> float | None:
        """Seconds until so many have departed which cost so much, at the upper end of what the true rate may be, taking
        departures for a Poisson process: nobody is refused because too little has been seen. None without evidence."""
        if self.per_s() is None:
            return None
        upper = self._departures + BOUND_SIGMAS * math.sqrt(self._departures) + BOUND_SIGMAS
        by_number = sequences / upper
        by_cost = cost / (self._cost * upper / self._departures) if self._cost else by_number
        return self._span_s * min(by_number, by_cost)
