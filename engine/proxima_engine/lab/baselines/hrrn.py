"""Highest response ratio next.

Source: Brinch Hansen, "An analysis of response ratio scheduling", Information Processing 71 (IFIP Congress 1971): the
next to start is the one with the highest `(waited + service) / service`, so short ones go first and long ones age into
their turn. Nobody is preempted for it.

The service is what is to be computed before the next token, the only part of the work that is known beforehand, as in
SGLang's policy `hrrn` (`managers/schedule_policy.py`, sgl-project/sglang#32911). With a rate that is the same for all,
the order is that of `waited / tokens`. SGLang counts the waiting in tokens that were prefilled meanwhile, takes off
what of a prompt is cached, and falls back to arrival order while more than 128 wait; this counts seconds and the whole
prompt, and never falls back.
"""

from __future__ import annotations

from proxima_engine.lab.baselines.line import Line
from proxima_engine.policy.in_order import start_in_order
from proxima_engine.policy.plan import Plan
from proxima_engine.policy.view import StepView


class HrrnPolicy:
    def __init__(self) -> None:
        self._line = Line(
            lambda request: request.arrival_s,
            lambda request: request.prompt_tokens + request.output_tokens,
        )

    def plan(self, view: StepView) -> Plan:
        arrival_s, tokens = self._line.follow(view)
        minus_ratio = (arrival_s - view.now_s) / tokens
        return start_in_order(view, self._line.smallest_first(view, minus_ratio))
