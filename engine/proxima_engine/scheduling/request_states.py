"""What the scheduler does with each request now, for people who look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from proxima_engine.policy.plan import Plan, Reason
from proxima_engine.policy.protocol import ExpectsStarts
from proxima_engine.policy.start_estimate import starts_in_turn_s
from proxima_engine.policy.urgency import CLASS_LEVEL
from proxima_engine.telemetry import REQUESTS_NAMED, Phase, RequestState

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from proxima_engine.scheduler import ProximaScheduler
    from proxima_engine.scheduling.view_builder import ViewBuilder

_BLOCKED = (Reason.BLOCKS, Reason.FORECAST)


def request_states(
    scheduler: ProximaScheduler, view: ViewBuilder, plan: Plan, finished_per_s: float
) -> list[RequestState]:
    """Those who run, in vLLM's order, then those who wait, in the order in which they are forecast to start."""
    states = [_running(scheduler, view, request) for request in islice(scheduler.running, REQUESTS_NAMED)]
    waiting = list(islice(_in_order(scheduler, view, plan), REQUESTS_NAMED))
    starts_s = _starts_s(scheduler, view, waiting, finished_per_s)
    for request, start_s in zip(waiting, starts_s, strict=True):
        # A step in which somebody yields looks at nobody who waits.
        otherwise = Reason.BLOCKS if request.num_output_tokens else Reason.BEHIND_HEAD
        state = _waiting(scheduler, view, request, plan.held.get(request.request_id, otherwise), start_s)
        states.append(state)
    holding = islice(scheduler.kv_holding_waiting, REQUESTS_NAMED)
    return states + [_waiting(scheduler, view, request, Reason.REMOTE_KV, None) for request in holding]


def _starts_s(
    scheduler: ProximaScheduler, view: ViewBuilder, waiting: Sequence[Request], finished_per_s: float
) -> Sequence[float | None]:
    policy = scheduler.proxima_policy
    if isinstance(policy, ExpectsStarts) and waiting:
        told = scheduler.proxima_guard.ask(
            lambda: policy.expected_starts_s(
                view.running_now(), [view.waiting_now(each) for each in waiting], finished_per_s
            )
        )
        if told is not None:
            return told
    # In order of arrival one starts when one has ended.
    first_s = 1 / finished_per_s if finished_per_s > 0 else None
    return starts_in_turn_s(first_s, [1.0] * len(waiting), finished_per_s)


def _in_order(scheduler: ProximaScheduler, view: ViewBuilder, plan: Plan) -> Iterator[Request]:
    """Those whom the plan looked at come first, in its order; of the others it only says that they are behind."""
    queue = scheduler.waiting
    considered = [request for request_id in plan.held if (request := queue.find(request_id)) is not None]
    # The head is whom the reservation is for; those who wait for something else are not in its way.
    considered.sort(key=lambda request: plan.held[request.request_id] not in _BLOCKED)
    yield from considered
    others = [request for request in queue if request.request_id not in plan.held]
    yield from sorted(others, key=lambda request: CLASS_LEVEL[view.class_of(request)])


def _running(scheduler: ProximaScheduler, view: ViewBuilder, request: Request) -> RequestState:
    groups = scheduler.kv_cache_manager.get_blocks(request.request_id).blocks
    decodes = request.num_computed_tokens >= request.num_prompt_tokens
    return _state(
        view, request, Phase.DECODE if decodes else Phase.PREFILL, blocks=sum(len(blocks) for blocks in groups)
    )


def _waiting(
    scheduler: ProximaScheduler, view: ViewBuilder, request: Request, reason: Reason, start_s: float | None
) -> RequestState:
    phase = Phase.BLOCKED if reason in _BLOCKED else Phase.WAITING
    if request.num_output_tokens:
        swap = scheduler.proxima_swap
        swapped = swap is not None and swap.ledger.saved_tokens(request.request_id) > 0
        phase = Phase.SWAPPED if swapped else Phase.YIELDED
    return _state(view, request, phase, reason=str(reason), start_s=start_s)


def _state(
    view: ViewBuilder,
    request: Request,
    phase: Phase,
    *,
    blocks: int = 0,
    reason: str = "",
    start_s: float | None = None,
) -> RequestState:
    return RequestState(
        request_id=request.request_id,
        request_class=str(view.class_of(request)),
        phase=phase,
        reason=reason,
        arrived_s=request.arrival_time,
        prompt_tokens=request.num_prompt_tokens,
        computed_tokens=request.num_computed_tokens,
        output_tokens=request.num_output_tokens,
        blocks=blocks,
        start_s=start_s,
    )
