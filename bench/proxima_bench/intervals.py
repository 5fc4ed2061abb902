"""How far a ratio can be trusted."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import sub, truediv
from statistics import median

from proxima_config.percentiles import percentile

CONFIDENCE = 0.95
FEWEST_ROUNDS = 3
"""Below this a bootstrap says nothing."""
VERDICT_ROUNDS = 5
"""Below this the interval is hardly more than the range, and equal arms often differ beyond it: it is then shown, but
nothing is called better or worse."""
_RESAMPLES = 10_000


@dataclass(frozen=True)
class Ratio:
    """Of two medians, or their difference. ``low`` and ``high`` bound the confidence interval; None with fewer than
    FEWEST_ROUNDS rounds."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def differs(self) -> bool:
        """Whether the interval excludes 1."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high


def ratio_of_medians(values: Sequence[float], base: Sequence[float]) -> Ratio | None:
    """Median of ``values`` over that of ``base``, with a percentile bootstrap interval.

    Both sequences have one value a round, in the same order: rounds are resampled in pairs, so that a machine that
    slows down for a while slows both. The resampling is seeded, so the same values give the same interval. None where
    the ratio is undefined.
    """
    if not values or min(base) <= 0:
        return None
    return _bootstrapped(values, base, truediv)


def difference_of_medians(values: Sequence[float], base: Sequence[float]) -> Ratio:
    """Likewise the median of ``values`` less that of ``base``, which may be 0; there must be a round."""
    return _bootstrapped(values, base, sub)


def _bootstrapped(values: Sequence[float], base: Sequence[float], of: Callable[[float, float], float]) -> Ratio:
    found = of(median(values), median(base))
    if len(values) < FEWEST_ROUNDS:
        return Ratio(found)
    rng = random.Random(0)
    rounds = range(len(values))
    drawn = []
    for _ in range(_RESAMPLES):
        chosen = rng.choices(rounds, k=len(values))
        drawn.append(of(median(values[i] for i in chosen), median(base[i] for i in chosen)))
    drawn.sort()
    outside = (1 - CONFIDENCE) / 2 * 100
    return Ratio(found, percentile(drawn, outside), percentile(drawn, 100 - outside))
