"""How long the engine takes for a step, by how many it computes at once: so how long an answer takes at the least.

A sequence gets a token in each step, and steps become longer with each sequence that is computed. What has been seen
with as many (to the power of two) or fewer is therefore a lower bound, and all that is claimed.
"""

from __future__ import annotations

from collections.abc import Mapping

from proxima_engine.telemetry import SchedulerSnapshot

FORGOTTEN_AFTER_S = 60.0
"""Prompts, kernels and neighbours change; what was seen longer ago says nothing."""


class Pace:
    """Time comes in as an argument, in seconds."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[float, float]] = {}
        """By how many were computed, to the power of two: seconds of a step, and when that was seen."""
        self._steps: dict[int, int] = {}
        self._ranks = 1

    def note(self, snapshots: Mapping[int, SchedulerSnapshot], now_s: float) -> None:
        """The newest of each rank; may be called with the same ones again."""
        self._ranks = max(1, len(snapshots))
        for rank, snapshot in snapshots.items():
            if snapshot.running and snapshot.step_s and self._steps.get(rank) != snapshot.step:
                self._steps[rank] = snapshot.step
                self._seen[snapshot.running.bit_length()] = snapshot.step_s, now_s

    def step_s(self, running: float, now_s: float) -> float | None:
        """Seconds that a step takes at the least while so many are computed, on all ranks together; None if unknown."""
        most = max(1, int(running / self._ranks)).bit_length()
        known = [
            step_s
            for size, (step_s, seen_s) in self._seen.items()
            if size <= most and now_s - seen_s < FORGOTTEN_AFTER_S
        ]
        return max(known, default=None)
