"""Builds the policy's picture of one step from vLLM's scheduler objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from proxima_engine.policy.demand import blocks_for, growth_blocks
from proxima_engine.policy.plan import Reason
from proxima_engine.policy.view import RunningRequest, SortKey, StepView, WaitingRequest

if TYPE_CHECKING:
    from proxima_engine.scheduling.planned_queue import PlannedQueue

SCAN_LIMIT = 256
"""Startable requests looked at in one step; bounds the cost of a plan whatever the length of the queue."""

_NOT_READY = {
    RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR: Reason.GRAMMAR,
    RequestStatus.WAITING_FOR_REMOTE_KVS: Reason.REMOTE_KV,
    RequestStatus.WAITING_FOR_STREAMING_REQ: Reason.PAUSED,
}


class ViewBuilder:
    """Reads one scheduler; holds the start times of its running requests, which vLLM does not keep."""

    def __init__(self, scheduler: Scheduler, queue: PlannedQueue) -> None:
        self._scheduler = scheduler
        self._queue = queue
        self._manager = scheduler.kv_cache_manager
        self._groups = len(scheduler.kv_cache_config.kv_cache_groups)
        self._started_s: dict[str, float] = {}
        # Denied at dispatch although the plan had blocks for it. Sits out one step, so that it cannot block the
        # scan step after step, yet is never locked out by a wrong guess of ours.
        self._denied: str | None = None

    def build(self, now_s: float, step_s: float) -> StepView:
        scheduler, pool = self._scheduler, self._manager.block_pool
        watermark = self._manager.watermark_blocks if scheduler.running else 0
        free = pool.get_num_free_blocks()
        # Rebuilt in each step, so that it holds nobody who has left.
        self._started_s = {
            request.request_id: self._started_s.get(request.request_id, now_s) for request in scheduler.running
        }
        return StepView(
            now_s=now_s,
            step_s=step_s,
            free_blocks=free - watermark,
            used_blocks=self.blocks_total - free,
            slots=scheduler.max_num_active_reqs - len(scheduler.running) - scheduler.num_waiting_for_streaming_input,
            running=[self._running(request) for request in scheduler.running],
            waiting=self._waiting_in_order(),
            exact_blocks=self._exact_blocks,
        )

    @property
    def blocks_total(self) -> int:
        # Block 0 is vLLM's null block: never given to a request.
        return int(self._manager.block_pool.num_gpu_blocks) - 1

    def deny(self, request_id: str | None) -> None:
        """Note which planned request vLLM had no blocks for in this step, if any."""
        self._denied = request_id

    def _running(self, request: Request) -> RunningRequest:
        block_size = self._scheduler.block_size
        tokens = request.num_computed_tokens
        pending = request.num_tokens_with_spec + request.num_output_placeholders - tokens
        after = tokens + min(pending, self._scheduler.max_num_scheduled_tokens) + self._scheduler.num_lookahead_tokens
        return RunningRequest(
            request_id=request.request_id,
            key=self._queue.key(request),
            blocks=blocks_for(tokens, block_size) * self._groups,
            growth_blocks=growth_blocks(tokens, after, block_size) * self._groups,
            started_s=self._started_s[request.request_id],
            remaining_tokens=max(0, request.num_prompt_tokens + request.max_tokens - request.num_tokens),
        )

    def _waiting_in_order(self) -> list[WaitingRequest]:
        seen: list[WaitingRequest] = []
        startable = 0
        for key, request in self._queue.entries():
            seen.append(self._waiting(key, request))
            startable += seen[-1].not_ready is None
            if startable == SCAN_LIMIT:
                break
        return seen

    def _waiting(self, key: SortKey, request: Request) -> WaitingRequest:
        return WaitingRequest(
            request_id=request.request_id,
            key=key,
            blocks_at_most=self._demand(request, ((),) * self._groups, 0),
            not_ready=_NOT_READY.get(request.status),
        )

    def _exact_blocks(self, request_id: str) -> int:
        request = self._scheduler.requests[request_id]
        cached, tokens, _ = self._manager.get_computed_blocks(request)
        return self._demand(request, cached.blocks, tokens)

    def _demand(self, request: Request, cached: tuple[object, ...], cached_tokens: int) -> int:
        """Blocks that `allocate_slots` will ask for: its own formula, so that gate and pool cannot disagree."""
        scheduler = self._scheduler
        computed = request.num_computed_tokens + cached_tokens
        tokens = request.num_tokens
        if not scheduler.scheduler_reserve_full_isl:
            tokens = min(tokens, computed + scheduler.max_num_scheduled_tokens)
        if request.request_id == self._denied:
            return self.blocks_total + 1
        return int(
            self._manager.coordinator.get_num_blocks_to_allocate(
                request_id=request.request_id,
                num_tokens=min(tokens + scheduler.num_lookahead_tokens, scheduler.max_model_len),
                new_computed_blocks=cached,
                num_encoder_tokens=0,
                total_computed_tokens=computed,
                num_local_computed_tokens=computed,
                num_tokens_main_model=tokens,
                apply_admission_cap=scheduler.scheduler_reserve_full_isl,
                prefill_end=max(request.num_prompt_tokens, request.num_tokens - 1),
            )
        )
