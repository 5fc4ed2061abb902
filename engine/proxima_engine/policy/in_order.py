"""What policies without backfilling share: start one after the other until one may not, yield until the rest fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from proxima_engine.policy.plan import Plan, Reason, YieldMode
from proxima_engine.policy.view import RunningRequest, StepView, WaitingRequest

MayStart = Callable[[WaitingRequest, int], bool]
"""Whether a request may start that needs a number of blocks now. Called once for each, in order."""


def _always(_request: WaitingRequest, _blocks: int) -> bool:
    return True


def start_in_order(view: StepView, candidates: Iterable[WaitingRequest], may_start: MayStart = _always) -> Plan:
    """Start candidates, first to last; the first that does not fit or may not start ends it.

    ``may_start`` has no say while nobody runs: an engine that idles although a request fits would do so for ever.
    """
    order: list[str] = []
    held: dict[str, Reason] = {}
    growth = view.growth_blocks
    free, started = max(0, view.free_blocks - growth), 0
    for request in candidates:
        if request.not_ready is not None:
            # vLLM looks at what it waits for only when it meets the request in its scan, and skips it at no cost.
            order.append(request.request_id)
            held[request.request_id] = request.not_ready
            continue
        if started >= view.slots:
            held[request.request_id] = Reason.SLOTS
            break
        blocks = request.blocks_at_most
        if blocks > free:
            blocks = view.exact_blocks(request.request_id)
        if blocks > free:
            held[request.request_id] = Reason.BLOCKS
            break
        if not may_start(request, blocks) and (view.running or started):
            held[request.request_id] = Reason.FORECAST
            break
        order.append(request.request_id)
        free -= blocks
        started += 1
    peak = view.used_blocks + growth + max(0, view.free_blocks - growth) - free
    return Plan(order=tuple(order), held=held, peak_blocks=peak)


def yield_until_rest_fits(view: StepView, victims: Iterable[RunningRequest]) -> Plan:
    """Let victims yield, first to last, until the other running requests have the blocks of this step.

    The last one never yields: alone in the pool it has all there is. Nobody starts in such a step.
    """
    missing, left = view.missing_blocks, len(view.running)
    yields: list[tuple[str, YieldMode]] = []
    for victim in victims:
        if missing <= 0 or left == 1:
            break
        yields.append((victim.request_id, YieldMode.RECOMPUTE))
        missing -= victim.blocks + victim.growth_blocks
        left -= 1
    return Plan(order=(), yields=tuple(yields), peak_blocks=view.used_blocks)
