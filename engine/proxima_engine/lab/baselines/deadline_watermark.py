"""On-time requests first, late ones last, with a margin of free blocks. Strong, and as simple as that.

Source: our own prototype, of two known parts. Jobs that can no longer meet their deadline go behind those that can, as
in Moore, "An n job, one machine sequencing algorithm for minimizing the number of late jobs", Management Science 15(1),
1968. The margin is vLLM's `watermark`: 5 % of the blocks stay free when a request starts beside others, so that those
who run have room to grow. The arm sets it in vLLM's own configuration; nothing here needs to count it.
"""

from __future__ import annotations

from itertools import chain

from proxima_engine.policy.in_order import start_in_order
from proxima_engine.policy.plan import Plan
from proxima_engine.policy.view import StepView, WaitingRequest

WATERMARK = 0.05


class DeadlineWatermarkPolicy:
    """``ttft_s``: seconds from arrival to the first token that are promised to everybody."""

    def __init__(self, ttft_s: float) -> None:
        self._ttft_s = ttft_s

    def plan(self, view: StepView) -> Plan:
        # A step that starts now brings its tokens when it ends.
        last_arrival_s = view.now_s + view.step_s - self._ttft_s

        def on_time(request: WaitingRequest) -> bool:
            # Whoever has its first token already is late no more: what counts is that its answer goes on.
            return request.output_tokens > 0 or request.arrival_s >= last_arrival_s

        first = (request for request in view.waiting if on_time(request))
        last = (request for request in view.waiting if not on_time(request))
        return start_in_order(view, chain(first, last))
