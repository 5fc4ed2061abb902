"""SGLang's admission by new-token ratio, with retraction.

Source: SGLang, `managers/schedule_policy.py` (`PrefillAdder`), `managers/schedule_batch.py` (`retract_decode`) and
`managers/scheduler_components/new_token_ratio_tracker.py`, with the defaults of `environ.py`:

* A newcomer is charged its prompt and its whole declared cap, those who run only a *ratio* of what is left of theirs;
  caps beyond 4,096 tokens count as 4,096. It starts if that is less than what is free; first come, first served.
* The ratio starts at 0.7 and falls in 600 decode steps to 0.14 of that.
* When the next decode step does not fit, those with the shortest answers so far are retracted (of equals the one with
  the longest prompt), until it does. The ratio then becomes the share of their caps that the others have generated,
  with 20 tokens more for each.
* An idle engine starts again at 0.7.
"""

from __future__ import annotations

from dataclasses import dataclass

from proxima_engine.policy.in_order import start_in_order, yield_until_rest_fits
from proxima_engine.policy.plan import Plan
from proxima_engine.policy.view import RunningRequest, StepView, WaitingRequest

INITIAL_RATIO = 0.7
LOWEST_RATIO = INITIAL_RATIO * 0.14
DECAY_STEPS = 600
CLIP_TOKENS = 4096
RETRACT_TOKENS = 20


class SglangRatioPolicy:
    def __init__(self) -> None:
        self.ratio = INITIAL_RATIO

    def plan(self, view: StepView) -> Plan:
        if not view.running:
            self.ratio = INITIAL_RATIO
        elif view.missing_blocks:
            return self._retract(view)
        else:
            self.ratio = max(LOWEST_RATIO, self.ratio - (INITIAL_RATIO - LOWEST_RATIO) / DECAY_STEPS)
        budget = _Budget(view, self.ratio)
        return start_in_order(view, view.waiting, budget.take)

    def _retract(self, view: StepView) -> Plan:
        plan = yield_until_rest_fits(
            view, sorted(view.running, key=lambda request: (request.output_tokens, -request.prompt_tokens))
        )
        gone = {request_id for request_id, _ in plan.yields}
        left = [request for request in view.running if request.request_id not in gone]
        generated = sum(request.output_tokens + RETRACT_TOKENS for request in left)
        self.ratio = min(1.0, generated / (sum(request.cap_tokens for request in left) + 1))
        return plan


@dataclass(slots=True)
class _Budget:
    """Tokens that newcomers of one step may still be charged."""

    view: StepView
    ratio: float
    left_tokens: float | None = None
    """Summed up when the first newcomer asks that would fit beside nobody: in most steps none does."""

    def take(self, request: WaitingRequest, blocks: int) -> bool:
        view = self.view
        # One block more, as SGLang reserves a page for what alignment may cost.
        charge = (blocks + 1) * view.block_size + min(max(0, request.cap_tokens - request.output_tokens), CLIP_TOKENS)
        if self.left_tokens is None:
            self.left_tokens = view.free_blocks * view.block_size
            if charge < self.left_tokens:
                self.left_tokens -= sum(map(self._reserved, view.running))
        self.left_tokens -= charge
        return self.left_tokens > 0

    def _reserved(self, request: RunningRequest) -> float:
        prompt_left = request.prompt_tokens + request.output_tokens - request.blocks * self.view.block_size
        return max(0, prompt_left) + min(request.remaining_tokens, CLIP_TOKENS) * self.ratio
