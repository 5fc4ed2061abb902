"""A step in which everybody who runs gets the next token of an answer, and nobody starts or gives way.

Nine of ten steps of a run are such, and vLLM's `schedule()` has one outcome for them: a token for each, and a block
from the KV-cache manager for whoever has filled the last one. What it would find is looked for first, without changing
anything; where it could be anything else, vLLM decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from proxima_engine.policy.demand import blocks_for

ANSWERED = [3]
"""What the lab's worker samples for an answer that goes on. The lab's requests have no text: any token will do."""
_CAN_START = (RequestStatus.WAITING, RequestStatus.PREEMPTED)


class DecodeBatch:
    """Those who run, as long as they are the same, and what each of their decode steps lists: made once for many."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = list(requests)
        self.ids = [request.request_id for request in requests]
        self.counts = dict.fromkeys(self.ids, 1)
        self.places = {request_id: place for place, request_id in enumerate(self.ids)}
        self.all_answered = ModelRunnerOutput(self.ids, self.places, [ANSWERED] * len(self.ids))
        """What the worker says where nobody's answer ends."""
        self.told = {0: EngineCoreOutputs(outputs=[EngineCoreOutput(each, ANSWERED) for each in self.ids])}
        """What clients are told then."""


@dataclass
class DecodeStep(SchedulerOutput):
    """What vLLM's output says, and for whom."""

    batch: DecodeBatch = field(kw_only=True)
    ends_somebody: bool = field(kw_only=True)
    """Whether it brings somebody to the cap of its answer, or to the end of its context."""


def schedule_decode_step(scheduler: Scheduler, last: DecodeBatch | None = None) -> DecodeStep | None:
    """What `schedule()` would return, with the scheduler in the state that it would leave; None, and nothing changed,
    where it is for vLLM to decide. ``last``: batch of the decode step before.

    For schedulers of the lab: one group of full attention, no speculation, text only, no connector but that which keeps
    KV of those who yield.
    """
    swap = getattr(scheduler, "proxima_swap", None)
    if swap is not None and not swap.is_idle:
        return None
    running: list[Request] = scheduler.running
    found = _need_their_manager(scheduler)
    if found is None:
        return None
    changing, ends_somebody = found
    if changing and swap is not None and swap.keeps_prefixes:
        # What was in their new blocks may have to be stored.
        return None
    batch = last if last is not None and last.requests == running else DecodeBatch(running)
    manager = scheduler.kv_cache_manager
    scheduler.current_step += 1
    manager.new_step_starts()
    for request in changing:
        manager.allocate_slots(request, 1)
    manager.take_new_block_ids()
    overlap = scheduler.scheduler_config.async_scheduling
    computed: list[int] = []
    for request in running:
        before = request.num_computed_tokens
        computed.append(before)
        request.num_computed_tokens = before + 1
        request.num_in_flight_tokens += 1
        if overlap:
            request.num_output_placeholders += 1
    output = DecodeStep(
        scheduled_new_reqs=[],
        scheduled_cached_reqs=CachedRequestData(
            req_ids=batch.ids,
            resumed_req_ids=set(),
            new_token_ids=[],
            all_token_ids={},
            new_block_ids=[],
            num_computed_tokens=computed,
            num_output_tokens=[],
        ),
        num_scheduled_tokens=batch.counts,
        total_num_scheduled_tokens=len(computed),
        scheduled_spec_decode_tokens={},
        scheduled_encoder_inputs={},
        finished_req_ids=scheduler.finished_req_ids,
        free_encoder_mm_hashes=[],
        preempted_req_ids=scheduler.reset_preempted_req_ids,
        batch=batch,
        ends_somebody=ends_somebody,
    )
    scheduler.finished_req_ids = set()
    scheduler.reset_preempted_req_ids = set()
    return output


def _need_their_manager(scheduler: Scheduler) -> tuple[list[Request], bool] | None:
    """Those who need a block for their next token, or have filled one that is to be cached, and whether the step ends
    somebody for want of room; None if it is of another kind."""
    running = scheduler.running
    most = min(scheduler.max_num_scheduled_tokens, scheduler.scheduler_config.max_num_batched_tokens)
    if not 0 < len(running) <= most or scheduler.pause_state is not PauseState.UNPAUSED:
        return None
    manager = scheduler.kv_cache_manager
    (group,) = manager.coordinator.single_type_managers
    held, cached, size = group.req_to_blocks, group.num_cached_block, group.block_size
    caching, longest = manager.enable_caching, scheduler.max_model_len - 2
    changing: list[Request] = []
    new_blocks, ends_somebody = 0, False
    for request in running:
        computed, ahead = request.num_computed_tokens, request.num_output_placeholders
        tokens, limit = request.num_tokens, request.num_prompt_tokens + request.max_tokens
        if (
            computed + 1 != tokens + ahead
            or computed > longest
            or request.is_prefill_chunk
            or request.num_stale_output_tokens
            # The step in flight brings its last token.
            or (ahead and computed + 2 - ahead >= limit)
        ):
            return None
        ends_somebody = ends_somebody or computed + 2 >= limit or computed == longest
        if computed >= len(held[request.request_id]) * size:
            new_blocks += 1
        elif not caching or tokens // size <= cached.get(request.request_id, 0):
            continue
        if computed < size:
            # Its first block may be what somebody waits for.
            return None
        changing.append(request)
    free = manager.block_pool.get_num_free_blocks() - new_blocks
    gives_away = new_blocks > 0 and _keeps_prefixes(scheduler)
    ours = free >= 0 and not gives_away and _nobody_starts(scheduler, free, size)
    return (changing, ends_somebody) if ours else None


def _keeps_prefixes(scheduler: Scheduler) -> bool:
    """Whether what the new blocks have held may have to be stored, which the metadata of a step must say."""
    swap = getattr(scheduler, "proxima_swap", None)
    return swap is not None and bool(swap.keeps_prefixes)


def _nobody_starts(scheduler: Scheduler, free: int, size: int) -> bool:
    """Whether vLLM would refuse the first who waits for want of blocks; it looks no further then."""
    if scheduler.kv_holding_waiting:
        return False
    if not scheduler.waiting or len(scheduler.running) >= scheduler.max_num_active_reqs:
        return True
    head = scheduler.waiting.peek_request()
    manager = scheduler.kv_cache_manager
    if (
        head.status not in _CAN_START
        or head.num_stale_output_tokens
        or head.num_computed_tokens
        or not scheduler.scheduler_reserve_full_isl
        or (head.block_hashes and manager.block_pool.get_cached_block(head.block_hashes[0], [0]) is not None)
    ):
        return False
    # With nothing of it in the cache it needs all its blocks.
    blocks = blocks_for(min(head.num_tokens, scheduler.max_model_len), size)
    return bool(blocks + manager.watermark_blocks > free)
