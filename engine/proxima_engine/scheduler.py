"""ProximaScheduler: puts the policy's plan before vLLM's own `schedule()`.

The way of one step: build a view of queue and pool -> policy makes a Plan -> yields are carried out, the waiting
queue is frozen to the planned order -> vLLM's `schedule()` runs unchanged and allocates -> the queue is released.
An error in the planning part costs that step its plan and nothing else; `super().schedule()` is never retried,
because a second run emits no block ids for blocks the first one took.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from proxima_engine.policy.admission import ProximaPolicy
from proxima_engine.policy.plan import Plan, YieldMode
from proxima_engine.policy.protocol import FinishedRequest, LearnsFromFinished, Policy
from proxima_engine.scheduling.guard import PolicyGuard
from proxima_engine.scheduling.hints import hints_of
from proxima_engine.scheduling.options import SchedulerOptions
from proxima_engine.scheduling.planned_queue import PlannedQueue
from proxima_engine.scheduling.report import SchedulerReport
from proxima_engine.scheduling.running import cap_tokens
from proxima_engine.scheduling.spared_allocation import spare
from proxima_engine.scheduling.step_clock import StepClock
from proxima_engine.scheduling.step_log import StepLog
from proxima_engine.scheduling.support import reason_against
from proxima_engine.scheduling.view_builder import ViewBuilder
from proxima_engine.swap.connector import ProximaSwapConnector
from proxima_engine.swap.failures import readers_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.engine import EngineCoreOutputs
    from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

    from proxima_engine.swap.scheduler_side import SwapSchedulerSide

_logger = logging.getLogger(__name__)
EMPTY_PLAN = Plan(order=())
ENDED_KEPT = 1024
"""Ended requests that are kept for a policy until its next plan; while nobody waits there is none."""
_ENDED_BY_ITSELF = (
    RequestStatus.FINISHED_STOPPED,
    RequestStatus.FINISHED_LENGTH_CAPPED,
    RequestStatus.FINISHED_REPETITION,
)


class StalePlanError(RuntimeError):
    """A plan asks a request to yield that does not run, or in a way that this scheduler does not offer."""


class ProximaScheduler(Scheduler):
    """vLLM's scheduler with the plan put before it."""

    max_num_scheduled_tokens: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        options = self._make_options()
        spare(self.kv_cache_manager)
        self.waiting = PlannedQueue(by_priority=self.policy is SchedulingPolicy.PRIORITY)
        self.proxima_policy = self._make_policy(options)
        self.proxima_guard = self._make_guard(options)
        self.proxima_plan = EMPTY_PLAN
        # The clock by which vLLM stamps arrivals, in whatever process: deadlines are counted from those.
        self.proxima_clock: Callable[[], float] = time.time
        self._ended: deque[FinishedRequest] = deque(maxlen=ENDED_KEPT)
        self.proxima_swap = self.connector.scheduler_side if isinstance(self.connector, ProximaSwapConnector) else None
        self._step_clock = StepClock()
        tell_cost = self.proxima_swap.token_s if self.proxima_swap is not None else lambda: None
        if (
            self.proxima_swap is not None
            and self.kv_cache_manager.enable_caching
            and self.hash_block_size == self.block_size
        ):
            self.proxima_swap.keep_prefixes_of(self.kv_cache_manager.block_pool)
        self._view = ViewBuilder(self, self.waiting, options.ttft_s, self._step_clock.step_time, tell_cost)
        self._report = SchedulerReport(self, self._view, self.proxima_guard, options)
        self._step_log = StepLog(Path(options.step_log)) if options.step_log else None
        # What is there before the first request: the pool, and whether there is a policy.
        self._report.publish_if_due()

    def _make_options(self) -> SchedulerOptions:
        return SchedulerOptions.from_vllm(self.vllm_config)

    def _make_policy(self, options: SchedulerOptions) -> Policy:
        return ProximaPolicy(options.max_wait_s, options.stall_s, options.max_stall_s)

    def _make_guard(self, options: SchedulerOptions) -> PolicyGuard:
        guard = PolicyGuard(options.max_policy_failures)
        if (reason := reason_against(self.vllm_config, self.kv_cache_config)) is not None:
            _logger.warning("requests go by arrival order; Proxima is not for %s", reason)
            guard.switch_off(f"not for {reason}")
        return guard

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:  # noqa: FBT001, FBT002  vLLM's signature
        """Plan, then let vLLM schedule what the plan names."""
        started_s = time.monotonic()
        self.proxima_plan = EMPTY_PLAN
        if (self.waiting or self.running) and self._pause_state is PauseState.UNPAUSED:
            plan = self.proxima_guard.attempt(self._plan_step)
            if plan is None:
                self._view.restart()
            self.proxima_plan = plan or EMPTY_PLAN
        self._report.planned(self.proxima_plan, time.monotonic() - started_s)
        begun_s = self.proxima_clock()
        most_tokens: int = self.max_num_scheduled_tokens
        step_tokens = self._most_tokens(most_tokens)
        self.max_num_scheduled_tokens = step_tokens
        try:
            output = self._dispatch(throttle_prefills)
        finally:
            left = self.waiting.release()
            self.max_num_scheduled_tokens = most_tokens
        self._report.dispatched(output)
        self._view.scheduled(output)
        # Where data-parallel ranks put prompts off together, it was not for want of blocks.
        self._view.deny(None if throttle_prefills else self._denied(left, output, step_tokens))
        self._step_clock.scheduled(output, begun_s)
        if self.proxima_swap is not None:
            self.proxima_swap.weigh(self._step_clock.step_time, output.total_num_scheduled_tokens)
        if self._step_log is not None:
            self._step_log.scheduled(output, started_s)
        self._report.publish_if_due()
        return output

    def _most_tokens(self, allowed: int) -> int:
        """Of this step, of those that vLLM allows. A prompt must be divisible for a step to compute a part of it, and
        no answer is left out."""
        budget, config = self.proxima_plan.token_budget, self.scheduler_config
        if budget is None or not config.enable_chunked_prefill or config.disable_chunked_mm_input:
            return allowed
        answers = len(self.running) * (1 + int(self.num_spec_tokens))
        # Where vLLM computes a prompt of a model with states block by block, of less than one it computes nothing.
        least = self.cache_config.block_size if self.need_mamba_block_aligned_split else 1
        return min(allowed, max(budget, answers + least))

    def _dispatch(self, throttle_prefills: bool) -> SchedulerOutput:  # noqa: FBT001  passed on
        if not self.proxima_plan.idle:
            return super().schedule(throttle_prefills)
        # vLLM's own way of computing nothing while requests run. Set directly: the setter logs each call.
        before = self.pause_state
        self._pause_state = PauseState.PAUSED_ALL
        try:
            return super().schedule(throttle_prefills)
        finally:
            self._pause_state = before

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        if self._step_log is not None:
            self._step_log.ended()
        if self.proxima_swap is not None and model_runner_output.kv_connector_output is not None:
            self._start_over_where_loads_failed(self.proxima_swap, model_runner_output.kv_connector_output)
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(scheduler_output, model_runner_output)
        now_s = self.proxima_clock()
        self._step_clock.ended(scheduler_output, now_s)
        self._report.stepped(now_s, outputs)
        return outputs

    def _start_over_where_loads_failed(self, swap: SwapSchedulerSide, told: KVConnectorOutput) -> None:
        """Drop what was computed on blocks that a load did not fill, also in steps that are in flight.

        vLLM's own recovery cuts a request back to its last good block, and does not know of steps in flight, whose
        tokens would then be delivered.
        """
        bad, told.invalid_block_ids = told.invalid_block_ids, set()
        if not bad:
            return
        tables = {each.request_id: self.kv_cache_manager.get_block_ids(each.request_id)[0] for each in self.running}
        readers = readers_of(bad, tables)
        # Blocks are in the prefix cache from the step on that fills them. Who read bad ones may have ended since, so
        # nothing stays there but what those hold who have not read any.
        good = {block for request_id, blocks in tables.items() if request_id not in readers for block in blocks}
        self.kv_cache_manager.evict_blocks(set(range(self.kv_cache_manager.block_pool.num_gpu_blocks)) - good)
        swap.forget_evicted()
        for request in [each for each in self.running if each.request_id in readers]:
            self.running.remove(request)
            self._preempt_request(request, time.monotonic(), drop_stale_output=True)
            # It may resume at once, and its tokens of the last step are not those that it goes on with.
            self.prev_step_scheduled_req_ids.discard(request.request_id)
        for request in self.waiting:
            # One that yielded while the step was in flight has saved, and will be sent, what may be wrong.
            if request.num_stale_output_tokens:
                request.drop_stale_output = True
                swap.ended(request.request_id)

    def finish_requests(self, request_ids: Any, finished_status: RequestStatus) -> list[Request]:
        finished: list[Request] = super().finish_requests(request_ids, finished_status)
        self._report.publish_if_due()
        return finished

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:  # noqa: FBT001, FBT002
        # Whoever resets it, as for new weights, must not get KV of before from the host either.
        if self.proxima_swap is not None:
            self.proxima_swap.forget_all()
        return bool(super().reset_prefix_cache(reset_running_requests, reset_connector))

    def shutdown(self) -> None:
        self._report.close()
        if self._step_log is not None:
            self._step_log.close()
        super().shutdown()

    def _free_request(self, request: Request, delay_free_blocks: bool = False) -> Any:  # noqa: FBT001, FBT002
        if request.status in _ENDED_BY_ITSELF:
            self._ended.append(
                FinishedRequest(
                    request_id=request.request_id,
                    prompt_tokens=request.num_prompt_tokens,
                    output_tokens=request.num_output_tokens,
                    cap_tokens=cap_tokens(request, self.max_model_len),
                    request_class=hints_of(request).request_class,
                )
            )
        self._report.ended(request.request_id)
        return super()._free_request(request, delay_free_blocks)

    def _preempt_request(self, request: Request, timestamp: float, drop_stale_output: bool = False) -> None:  # noqa: FBT001, FBT002
        self._take_back_unfilled(request)
        if self.proxima_swap is not None:
            if drop_stale_output:
                # Its KV is worthless when what is in flight is dropped too: vLLM does that when the cache is reset.
                self.proxima_swap.ended(request.request_id)
            else:
                # vLLM has no hook for it. Afterwards nobody knows which blocks were its own.
                self.proxima_swap.yields(request, self.kv_cache_manager.get_block_ids(request.request_id)[0])
        self._report.preempted(request)
        super()._preempt_request(request, timestamp, drop_stale_output)

    def _take_back_unfilled(self, request: Request) -> None:
        """Out of the prefix cache with blocks that a request was to fill in this step, and now does not.

        vLLM puts them there when it allocates them. By priority it may preempt one that it has scheduled in the same
        step: it takes back the tokens of that step, and not what they were to fill.
        """
        blocks = self.kv_cache_manager.get_blocks(request.request_id).blocks
        computed: int = request.num_computed_tokens
        unfilled = {each.block_id for group in blocks for each in group if (each.block_hash_num_tokens or 0) > computed}
        if not unfilled:
            return
        if self.proxima_swap is not None:
            self.proxima_swap.disown(unfilled)
        self.kv_cache_manager.evict_blocks(unfilled)

    def _plan_step(self) -> Plan:
        self._tell_who_ended()
        view = self._view.build(self.proxima_clock(), self._report.step_s())
        plan = self.proxima_policy.plan(view)
        victims = self._victims(plan)
        if self.proxima_swap is not None:
            self._look_ahead(self.proxima_swap, plan)
        self.waiting.follow(plan.order)
        # The plan is checked. Where one cannot yield all the same, it still runs, and vLLM makes room its own way.
        for request in victims:
            self._yield_blocks(request)
        return plan

    def _look_ahead(self, swap: SwapSchedulerSide, plan: Plan) -> None:
        """Tell whose KV is likely to move in one of the next steps."""
        yielding = {request_id for request_id, _ in plan.yields}
        found = (self.requests.get(name) for name in plan.likely_victims if name not in yielding)
        running = (request for request in found if request is not None and request.status is RequestStatus.RUNNING)
        manager = self.kv_cache_manager
        swap.expect(((request, manager.get_block_ids(request.request_id)[0]) for request in running), plan.held)

    def _tell_who_ended(self) -> None:
        if self._ended and isinstance(self.proxima_policy, LearnsFromFinished):
            while self._ended:
                self.proxima_policy.finished(self._ended.popleft())
        self._ended.clear()

    def _victims(self, plan: Plan) -> list[Request]:
        if not plan.yields:
            return []
        running = {request.request_id: request for request in self.running}
        for request_id, mode in plan.yields:
            if request_id not in running or (mode is YieldMode.SWAP and self.proxima_swap is None):
                raise StalePlanError(f"cannot yield {request_id} by {mode}")
        return [running[request_id] for request_id, _ in plan.yields]

    def _yield_blocks(self, request: Request) -> None:
        # Not part of this step's frozen order, so it cannot resume in the step in which it yields. Out of those who run
        # at last: where what we do before vLLM's part fails, it goes on as if it had not been asked.
        self._preempt_request(request, time.monotonic(), drop_stale_output=self.requires_kv_delivery)
        self.running.remove(request)

    def _denied(self, left: list[str], output: SchedulerOutput, step_tokens: int) -> str | None:
        """The planned request whose allocation vLLM refused, as far as that can be told from outside."""
        out_of_tokens = output.total_num_scheduled_tokens >= step_tokens
        out_of_slots = len(self.running) >= self.max_num_active_reqs
        other_cause = out_of_tokens or out_of_slots or self.kv_holding_waiting or output.preempted_req_ids
        if not left or other_cause or not self.running or not self.scheduler_config.enable_chunked_prefill:
            return None
        return left[0]


class ProximaAsyncScheduler(ProximaScheduler, AsyncScheduler):
    """The same before vLLM's asynchronous scheduler; the synchronous one would cost the overlap.

    In the method resolution order AsyncScheduler stands between ProximaScheduler and Scheduler, so that every
    `super()` above reaches it first.
    """


def select_scheduler(vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> Scheduler:
    """Factory that vLLM calls as its scheduler class.

    A function rather than a class, because only the final configuration says whether scheduling is asynchronous:
    the platform decides it after the arguments were parsed.
    """
    chosen = ProximaAsyncScheduler if vllm_config.scheduler_config.async_scheduling else ProximaScheduler
    _logger.info("scheduling by %s", chosen.__name__)
    return chosen(vllm_config, *args, **kwargs)
