"""Shortest job first, by the true length. Cheats.

Source: Smith, "Various optimizers for single-stage production", Naval Research Logistics Quarterly 3(1-2), 1956: on one
machine, to start the shortest first makes the mean waiting time least. The job is what remains of the answer. Admission
looks at the blocks of now only, as vLLM's does, so what this gains over `native` is order alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from proxima_engine.policy.in_order import smallest_first, start_in_order
from proxima_engine.policy.plan import Plan
from proxima_engine.policy.view import StepView, WaitingRequest


class SjfOraclePolicy:
    def __init__(self, true_tokens: Mapping[str, int]) -> None:
        self._true_tokens = true_tokens

    def plan(self, view: StepView) -> Plan:
        return start_in_order(view, smallest_first(view.waiting, self._remaining_tokens))

    def _remaining_tokens(self, request: WaitingRequest) -> int:
        return self._true_tokens[request.request_id] - request.output_tokens
