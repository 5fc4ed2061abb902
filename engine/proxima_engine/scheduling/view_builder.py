"""Builds the policy's picture of one step from vLLM's scheduler objects."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.request import Request, RequestStatus

from proxima_config.hints import RequestClass
from proxima_engine.policy.pace import StepTime
from proxima_engine.policy.plan import Reason
from proxima_engine.policy.view import Changes, RunningRequest, StartedRequest, StepView, WaitingRequest
from proxima_engine.scheduling.hints import hints_of
from proxima_engine.scheduling.running import Running, cap_tokens

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput

    from proxima_engine.scheduling.planned_queue import PlannedQueue

_NOT_READY = {
    RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR: Reason.GRAMMAR,
    RequestStatus.WAITING_FOR_REMOTE_KVS: Reason.REMOTE_KV,
    RequestStatus.WAITING_FOR_STREAMING_REQ: Reason.PAUSED,
}

_NOTHING = Changes()


def _adapter(request: Request) -> int:
    return int(request.lora_request.lora_int_id) if request.lora_request else 0


class ViewBuilder:
    """Reads one scheduler. Remembers who waited and ran at the last view, to name what has changed since: hundreds
    wait and run, few of them change in a step, and asking vLLM about all costs more than the rest of a plan."""

    def __init__(
        self,
        scheduler: Scheduler,
        queue: PlannedQueue,
        ttft_s: float,
        step_time: StepTime,
        swap_token_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._scheduler = scheduler
        self._queue = queue
        self._ttft_s = ttft_s
        self._step_time = step_time
        self._swap_token_s = swap_token_s
        self._manager = scheduler.kv_cache_manager
        groups = scheduler.kv_cache_config.kv_cache_groups
        self._groups = len(groups)
        self._prefixes_are_chains = len(groups) == 1 and type(groups[0].kv_cache_spec) is FullAttentionSpec
        self._waiting: dict[str, WaitingRequest] = {}
        self._not_ready: dict[str, Reason] = {}
        self._running = Running(scheduler, queue)
        self._restart = True
        # Denied at dispatch although the plan had blocks for it. Sits out one step, so that it cannot block the
        # scan step after step, yet is never locked out by a wrong guess of ours.
        self._denied: str | None = None

    def build(self, now_s: float, step_s: float) -> StepView:
        scheduler, pool = self._scheduler, self._manager.block_pool
        watermark = self._manager.watermark_blocks if scheduler.running else 0
        free = pool.get_num_free_blocks()
        changes = self._changes(now_s)
        return StepView(
            now_s=now_s,
            step_s=step_s,
            free_blocks=free - watermark,
            used_blocks=self.blocks_total - free,
            blocks_total=self.blocks_total,
            block_size=scheduler.block_size / self._groups,
            slots=scheduler.max_num_active_reqs - len(scheduler.running) - scheduler.num_waiting_for_streaming_input,
            in_flight=any(request.num_in_flight_tokens for request in scheduler.running),
            growth_blocks=self._running.growth_blocks(),
            exact_blocks=self._exact_blocks,
            shared_blocks=self._shared_blocks,
            list_running=self._running.in_order,
            list_waiting=self._waiting_in_order,
            changes=changes,
            step_time=self._step_time,
            swap_token_s=self._swap_token_s(),
            adapters=self._adapters(),
            adapter_slots=scheduler.lora_config.max_loras if scheduler.lora_config else math.inf,
            denied=self._denied,
        )

    @property
    def blocks_total(self) -> int:
        # Block 0 is vLLM's null block: never given to a request.
        return int(self._manager.block_pool.num_gpu_blocks) - 1

    def class_of(self, request: Request) -> RequestClass:
        told = self._waiting.get(request.request_id)
        return hints_of(request).request_class if told is None else told.request_class

    def running_now(self) -> list[RunningRequest]:
        """Those who run now, not as of the last view."""
        return self._running.in_order()

    def waiting_now(self, request: Request) -> WaitingRequest:
        """One who waits, also if it has come since the last view."""
        return self._waiting.get(request.request_id) or self._as_waiting(request)

    def scheduled(self, output: SchedulerOutput) -> None:
        """What vLLM made of the step."""
        self._running.scheduled(output)

    def everybody_waiting(self) -> list[WaitingRequest]:
        """Also those who have come since the last view, without the blocks that they need: to ask for those is dear."""
        known, queued = self._waiting, self._queue.entries()
        everybody = [known.get(request.request_id) or self._as_waiting(request, 0) for _, request in queued]
        return everybody + [self._as_waiting(request, 0) for request in self._scheduler.kv_holding_waiting]

    def deny(self, request_id: str | None) -> None:
        """Note which planned request vLLM had no blocks for in this step, if any."""
        self._denied = request_id

    def restart(self) -> None:
        """The last view did not come to a plan: the next one tells everything anew."""
        self._restart = True
        # What is known of those who wait grows old.
        self._waiting.clear()
        # Nobody else empties it, where there are no plans any more.
        self._queue.take_touched()

    # -- changes ---------------------------------------------------------------------------------------------------

    def _changes(self, now_s: float) -> Changes:
        restart, self._restart = self._restart, False
        touched = self._queue.take_touched() | self._turned_ready()
        if restart:
            touched |= {request.request_id for request in self._queue}
            self._waiting.clear()
            self._not_ready.clear()
            self._running.forget()
        new, stopped = self._running.look(now_s)
        if not (restart or touched or new or stopped):
            return _NOTHING
        started = [self._started(request) for request in new]
        arrived, left = self._arrivals(touched)
        return Changes(restart, arrived, left, started, stopped)

    def _turned_ready(self) -> set[str]:
        """vLLM lets them turn ready in place, when it meets them in its scan."""
        turned = set()
        for request_id, reason in self._not_ready.items():
            request = self._queue.find(request_id)
            if request is None or _NOT_READY.get(request.status) is not reason:
                turned.add(request_id)
        return turned

    def _arrivals(self, touched: set[str]) -> tuple[list[WaitingRequest], list[str]]:
        arrived: list[WaitingRequest] = []
        left: list[str] = []
        for request_id in touched:
            request = self._queue.find(request_id)
            self._not_ready.pop(request_id, None)
            if request is not None:
                waiting = self._waiting[request_id] = self._as_waiting(request)
                arrived.append(waiting)
                if waiting.not_ready is not None:
                    self._not_ready[request_id] = waiting.not_ready
            elif self._waiting.pop(request_id, None) is not None:
                left.append(request_id)
        # Sets have no order of their own; with this one, the same requests give the same plan.
        return sorted(arrived, key=lambda waiting: waiting.key), left

    def _adapters(self) -> frozenset[int]:
        if not self._scheduler.lora_config:
            return frozenset()
        return frozenset(adapter for request in self._scheduler.running if (adapter := _adapter(request)))

    def _started(self, request: Request) -> StartedRequest:
        shared = self._shared_blocks(request.request_id)
        return StartedRequest(self._waiting.get(request.request_id) or self._as_waiting(request), shared)

    def _shared_blocks(self, request_id: str) -> int:
        blocks = self._manager.get_blocks(request_id).blocks
        return sum(block.ref_cnt > 1 for group in blocks for block in group)

    # -- those who wait --------------------------------------------------------------------------------------------

    def _waiting_in_order(self) -> list[WaitingRequest]:
        return [self._waiting[request.request_id] for request in self._queue if request.request_id != self._denied]

    def _as_waiting(self, request: Request, blocks_at_most: int | None = None) -> WaitingRequest:
        hints = hints_of(request)
        if blocks_at_most is None:
            blocks_at_most = self._demand(request, ((),) * self._groups, 0)
        return WaitingRequest(
            request_id=request.request_id,
            key=self._queue.key(request),
            blocks_at_most=blocks_at_most,
            prompt_tokens=request.num_prompt_tokens,
            output_tokens=request.num_output_tokens,
            cap_tokens=cap_tokens(request, self._scheduler.max_model_len),
            ttft_s=self._ttft_s if hints.ttft_s is None else hints.ttft_s,
            not_ready=_NOT_READY.get(request.status),
            request_class=hints.request_class,
            total_s=hints.total_s,
            adapter=_adapter(request),
        )

    def _exact_blocks(self, request_id: str) -> int:
        request = self._scheduler.requests[request_id]
        told = self._waiting.get(request_id)
        first = request.block_hashes[0] if request.block_hashes and self._prefixes_are_chains else None
        # Without its first block nothing of it is found, and most requests have a prompt of their own.
        if told is not None and first is not None and self._manager.block_pool.get_cached_block(first, [0]) is None:
            return told.blocks_at_most
        cached, tokens, _ = self._manager.get_computed_blocks(request)
        if not tokens and told is not None:
            return told.blocks_at_most
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
