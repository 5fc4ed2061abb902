"""Builds the policy's picture of one step from vLLM's scheduler objects."""

from __future__ import annotations

from dataclasses import replace
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


def cap_tokens(request: Request, max_model_len: int) -> int:
    """Output tokens that a request may have at most: what it declared, as far as the model's context holds it."""
    return min(int(request.max_tokens), max(0, max_model_len - int(request.num_prompt_tokens)))


class ViewBuilder:
    """Reads one scheduler; holds the start times of its running requests, which vLLM does not keep."""

    def __init__(self, scheduler: Scheduler, queue: PlannedQueue, scan_limit: int) -> None:
        self._scheduler = scheduler
        self._queue = queue
        self._manager = scheduler.kv_cache_manager
        self._groups = len(scheduler.kv_cache_config.kv_cache_groups)
        self._scan_limit = scan_limit
        self._started_s: dict[str, float] = {}
        # Who waited at the last plan, with the length at that time: nothing else about a startable request changes
        # while it waits, and asking the KV manager anew for hundreds of them costs more than the rest of a plan.
        self._known: dict[str, tuple[int, WaitingRequest]] = {}
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
            blocks_total=self.blocks_total,
            block_size=scheduler.block_size,
            slots=scheduler.max_num_active_reqs - len(scheduler.running) - scheduler.num_waiting_for_streaming_input,
            running=self._running_in_order(),
            waiting=self._waiting_in_order(),
            in_flight=any(request.num_in_flight_tokens for request in scheduler.running),
            exact_blocks=self._exact_blocks,
        )

    @property
    def blocks_total(self) -> int:
        # Block 0 is vLLM's null block: never given to a request.
        return int(self._manager.block_pool.num_gpu_blocks) - 1

    def deny(self, request_id: str | None) -> None:
        """Note which planned request vLLM had no blocks for in this step, if any."""
        self._denied = request_id

    def _running_in_order(self) -> list[RunningRequest]:
        """In vLLM's order, in which they also share the tokens of a step."""
        scheduler, budget = self._scheduler, self._scheduler.max_num_scheduled_tokens
        running: list[RunningRequest] = []
        for request in scheduler.running:
            computed = request.num_computed_tokens
            pending = 0
            if not self._ends_in_flight(request):
                pending = request.num_tokens_with_spec + request.num_output_placeholders - computed
            after = computed + min(pending, budget)
            budget -= after - computed
            after += scheduler.num_lookahead_tokens
            running.append(
                RunningRequest(
                    request_id=request.request_id,
                    key=self._queue.key(request),
                    blocks=blocks_for(computed, scheduler.block_size) * self._groups,
                    growth_blocks=growth_blocks(computed, after, scheduler.block_size) * self._groups,
                    started_s=self._started_s[request.request_id],
                    prompt_tokens=request.num_prompt_tokens,
                    output_tokens=request.num_output_tokens,
                    cap_tokens=cap_tokens(request, scheduler.max_model_len),
                )
            )
        return running

    @staticmethod
    def _ends_in_flight(request: Request) -> bool:
        """Whether the step in flight brings its last token at the latest: vLLM's own test for not running it again."""
        ahead = request.num_output_placeholders
        return bool(ahead and request.num_computed_tokens + 2 - ahead >= request.num_prompt_tokens + request.max_tokens)

    def _waiting_in_order(self) -> list[WaitingRequest]:
        known, self._known = self._known, {}
        seen: list[WaitingRequest] = []
        startable = 0
        for key, request in self._queue.entries():
            request_id, tokens = request.request_id, request.num_tokens
            tokens_then, waiting = known.get(request_id, (-1, None))
            if waiting is None or tokens_then != tokens or waiting.not_ready is not None:
                waiting = self._waiting(key, request)
            self._known[request_id] = (tokens, waiting)
            if request_id == self._denied:
                waiting = replace(waiting, blocks_at_most=self.blocks_total + 1)
            seen.append(waiting)
            startable += waiting.not_ready is None
            if startable == self._scan_limit:
                break
        return seen

    def _waiting(self, key: SortKey, request: Request) -> WaitingRequest:
        return WaitingRequest(
            request_id=request.request_id,
            key=key,
            blocks_at_most=self._demand(request, ((),) * self._groups, 0),
            prompt_tokens=request.num_prompt_tokens,
            output_tokens=request.num_output_tokens,
            cap_tokens=cap_tokens(request, self._scheduler.max_model_len),
            not_ready=_NOT_READY.get(request.status),
        )

    def _exact_blocks(self, request_id: str) -> int:
        if request_id == self._denied:
            return self.blocks_total + 1
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
