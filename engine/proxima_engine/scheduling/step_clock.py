"""Measures what steps take, for plans that bound them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from proxima_engine.policy.pace import StepTime

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput

_IN_FLIGHT = 8
"""More steps than any engine has under way. What is older was never answered for."""


class StepClock:
    def __init__(self) -> None:
        self.step_time = StepTime()
        self._begun: deque[tuple[SchedulerOutput, float]] = deque(maxlen=_IN_FLIGHT)
        self._last_end_s = 0.0

    def scheduled(self, output: SchedulerOutput, begun_s: float) -> None:
        """``begun_s``: when its scheduling began."""
        self._begun.append((output, begun_s))

    def ended(self, output: SchedulerOutput, now_s: float) -> None:
        """Its results are here. A step that was scheduled while another ran began when that one ended."""
        while self._begun:
            begun, begun_s = self._begun.popleft()
            if begun is output:
                took_s = now_s - max(begun_s, self._last_end_s)
                if output.total_num_scheduled_tokens and took_s > 0:
                    self.step_time.learn(output.total_num_scheduled_tokens, took_s)
                break
        self._last_end_s = now_s
