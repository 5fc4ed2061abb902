"""How sure a share is."""

from __future__ import annotations

import math
from collections.abc import Sequence

from proxima_bench.html.results import Measured

_Z = 1.959964
"""Of a normal distribution, for 95 %."""


def attainment(measured: Sequence[Measured]) -> tuple[float, float, float]:
    """Share of all requests of these rounds, and Wilson's 95 % interval of a binomial share.

    It takes requests for independent of each other. In a queue they are not, so the truth is somewhat wider.
    """
    offered = sum(each.report["requests"]["offered"] for each in measured)
    attained = sum(each.report["requests"]["attained"] for each in measured)
    if not offered:
        return 0.0, 0.0, 1.0
    share = attained / offered
    centre = (share + _Z**2 / (2 * offered)) / (1 + _Z**2 / offered)
    half = _Z / (1 + _Z**2 / offered) * math.sqrt(share * (1 - share) / offered + _Z**2 / (4 * offered**2))
    return share, min(share, max(0.0, centre - half)), max(share, min(1.0, centre + half))
