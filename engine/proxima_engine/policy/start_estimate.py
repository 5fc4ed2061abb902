"""When each of those who wait is going to start, as far as that can be told."""

from __future__ import annotations

from collections.abc import Sequence


def estimated_starts_s(count: int, head_start_s: float | None, finished_per_s: float) -> Sequence[float | None]:
    """Seconds until each of `count` waiting requests starts, first to last.

    The first starts when the plan forecasts that it fits (``head_start_s``), where that is known; each one behind it
    when one more request has ended. None while nothing is known: no forecast, and none has ended yet.
    """
    interval_s = 1 / finished_per_s if finished_per_s > 0 else None
    first_s = interval_s if head_start_s is None else head_start_s
    return [
        first_s if not place else None if first_s is None or interval_s is None else first_s + place * interval_s
        for place in range(count)
    ]
