"""Percentiles, defined once for benchmark and lab."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(ordered: Sequence[float], share: float) -> float:
    """Value below which ``share`` (0 to 100) of the ascending values lie, interpolated linearly between neighbours.

    The same definition as numpy's default. ``ordered`` must not be empty.
    """
    rank = (len(ordered) - 1) * share / 100
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    # This form stays between its neighbours whatever the rounding.
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)
