"""On-time requests first, late ones last, with a margin of free blocks. Strong, and as simple as that.

Source: our own prototype, of two known parts. Jobs that can no longer meet their deadline go behind those that can, as
in Moore, "An n job, one machine sequencing algorithm for minimizing the number of late jobs", Management Science 15(1),
1968. The margin is vLLM's `watermark`: 5 % of the blocks stay free when a request starts beside others, so that those
who run have room to grow. The arm sets it in vLLM's own configuration; nothing here needs to count it.
"""

from __future__ import annotations

import math

from proxima_engine.lab.baselines.line import Line
from proxima_engine.policy.in_order import start_in_order
from proxima_engine.policy.plan import Plan
from proxima_engine.policy.view import StepView, WaitingRequest

WATERMARK = 0.05


def _arrival_s(request: WaitingRequest) -> float:
    # Whoever has its first token already is late no more: what counts is that its answer goes on.
    return math.inf if request.output_tokens else request.arrival_s


class DeadlineWatermarkPolicy:
    """``ttft_s``: seconds from arrival to the first token that are promised to everybody."""

    def __init__(self, ttft_s: float) -> None:
        self._ttft_s = ttft_s
        self._line = Line(_arrival_s)

    def plan(self, view: StepView) -> Plan:
        (arrival_s,) = self._line.follow(view)
        # A step that starts now brings its tokens when it ends.
        is_late = arrival_s < view.now_s + view.step_s - self._ttft_s
        return start_in_order(view, self._line.smallest_first(view, is_late.astype(float)))
