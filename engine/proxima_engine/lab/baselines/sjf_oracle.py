"""Shortest job first, by the true length. Cheats.

Source: Smith, "Various optimizers for single-stage production", Naval Research Logistics Quarterly 3(1-2), 1956: on one
machine, to start the shortest first makes the mean waiting time least. The job is what remains of the answer. Admission
looks at the blocks of now only, as vLLM's does, so what this gains over `native` is order alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from proxima_engine.lab.baselines.line import Line
from proxima_engine.policy.in_order import start_in_order
from proxima_engine.policy.plan import Plan
from proxima_engine.policy.view import StepView


class SjfOraclePolicy:
    def __init__(self, true_tokens: Mapping[str, int]) -> None:
        self._line = Line(lambda request: true_tokens[request.request_id] - request.output_tokens)

    def plan(self, view: StepView) -> Plan:
        (remaining_tokens,) = self._line.follow(view)
        return start_in_order(view, self._line.smallest_first(view, remaining_tokens))
