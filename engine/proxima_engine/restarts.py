"""How often, and after what pause, an engine that failed is started again."""

from __future__ import annotations

from collections import deque

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0


class RestartBudget:
    """At most `limit` restarts within any `window_s` seconds, each after a pause twice as long as the last one's.

    Pure: the time is handed in. A restart that is older than the window is forgotten, also by the pauses.
    """

    def __init__(self, limit: int, window_s: float) -> None:
        self._limit = limit
        self._window_s = window_s
        self._taken_s: deque[float] = deque()

    def take(self, now_s: float) -> float | None:
        """Use up one restart; returns the seconds to wait before it, or None when none is left."""
        while self._taken_s and now_s - self._taken_s[0] >= self._window_s:
            self._taken_s.popleft()
        if len(self._taken_s) >= self._limit:
            return None
        pause_s = min(FIRST_PAUSE_S * 2.0 ** len(self._taken_s), LONGEST_PAUSE_S)
        self._taken_s.append(now_s)
        return pause_s
