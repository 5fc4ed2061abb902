"""When one who waits may start although the pool may become too small for a moment.

Where next to nobody waits, what comes free next is for whoever has to yield now, so that a short overflow costs less
than the wait. Under load that is never so: whoever yields then waits together with others.
"""

from __future__ import annotations

import math

from proxima_engine.policy.demand import HORIZONS, Demand

CONFIDENCE = 0.68
"""Part of the usual confidence for one who waits alone: about one in ten instead of one in thirty."""


class WaitingAlone:
    def __init__(self, quiet_s: float, stall_s: float) -> None:
        """``quiet_s``: for so long nobody must have waited beside others before one counts as waiting alone;
        ``stall_s``: longest gap between two tokens of an answer that is promised."""
        self._quiet_s = quiet_s
        self._stall_s = stall_s
        self._crowded_s: float | None = None
        """When somebody last waited beside others, or the time of the first plan."""

    def plan_begins(self, now_s: float) -> None:
        if self._crowded_s is None:
            self._crowded_s = now_s

    def somebody_is_held(self, now_s: float, waiting: int) -> None:
        if waiting > 1:
            self._crowded_s = now_s

    def is_so(self, now_s: float, waiting: int) -> bool:
        return waiting == 1 and self._crowded_s is not None and now_s - self._crowded_s >= self._quiet_s

    def overflow_is_brief(self, together: Demand, room: float, z: float, step_s: float) -> bool:
        """Whether demand, if it comes to more than there is, is not likely to stay there for longer than an answer may
        stand still. Then who waits gains more than who yields loses.

        Who yields goes on when demand has fallen to what there is. It cannot be above that before all together could
        hold more, and one gap of the target after that everything must fit again.
        """
        if not step_s or self._stall_s == math.inf:
            return False
        first = int((together.most > room).argmax())
        fits_until = float(HORIZONS[first - 1]) if first else 0.0
        again = fits_until + self._stall_s / step_s <= HORIZONS
        return not bool(((together.upper(CONFIDENCE * z) > room) & again).any())
