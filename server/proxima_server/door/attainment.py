"""How many requests may be on their way so that most of those with a deadline meet it.

The forecast of the start cannot see that all who start together become slow together. What it misses shows in the
outcome: where most of an interval's requests have missed their deadline, half as many are let in, a quarter if all
have; where most have met it, a quarter more. So overload never makes all late for long. Deadlines of different kinds,
lengths (to the power of two) and levels have nothing to do with each other: who sets impossible ones harms nobody else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from proxima_server.door.deadlines import Deadline

MIN_OUTCOMES = 8
"""Fewer say nothing."""
FORGOTTEN_AFTER_S = 60.0
"""A limit is dropped when for so long (or for four times the deadline) most have met it."""

Timed = tuple[Deadline, float]
"""A deadline, and its seconds from arrival."""


@dataclass
class _Record:
    since_s: float
    most: int = 0
    """Highest number on their way since then."""
    met: int = 0
    missed: int = 0
    limit: float = math.inf
    bad_s: float = -math.inf
    """When most had missed it last."""


class Attainment:
    """Time comes in as an argument, in seconds."""

    def __init__(self) -> None:
        self._records: dict[tuple[Deadline, int, int], _Record] = {}

    def limit(self, deadline: Timed, level: int, now_s: float) -> float:
        """How many of that level and of more urgent ones may be on their way with one more of this deadline."""
        record = self._records.get(_key(deadline, level))
        if record is None:
            return math.inf
        if now_s - record.bad_s > max(FORGOTTEN_AFTER_S, 4 * deadline[1]):
            record.limit = math.inf
        return record.limit

    def note(self, deadline: Timed, level: int, *, met: bool, on_their_way: int, now_s: float) -> None:
        """A request that the engine had has met its deadline or missed it, while so many were on their way."""
        record = self._records.setdefault(_key(deadline, level), _Record(now_s))
        record.most = max(record.most, on_their_way)
        record.met += met
        record.missed += not met
        # Who was let in before the last change needs as long as the deadline to show what it did.
        if record.met + record.missed < MIN_OUTCOMES or now_s - record.since_s < deadline[1]:
            return
        if record.missed > record.met:
            record.limit = max(1.0, min(record.limit, record.most) * (0.5 if record.met else 0.25))
            record.bad_s = now_s
        else:
            record.limit = record.limit * 1.25 + 1
        record.since_s, record.most, record.met, record.missed = now_s, 0, 0, 0


def _key(deadline: Timed, level: int) -> tuple[Deadline, int, int]:
    kind, seconds = deadline
    return kind, math.frexp(seconds)[1], level
