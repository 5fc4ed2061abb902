"""Counts what the scheduler does and publishes it as snapshots."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from proxima_engine.policy.plan import Plan, Reason
from proxima_engine.policy.protocol import ChecksForecasts
from proxima_engine.policy.urgency import CLASS_LEVEL
from proxima_engine.scheduling.decision_log import DecisionLog
from proxima_engine.scheduling.rates import DecayingRate
from proxima_engine.scheduling.recomputed import Recomputed
from proxima_engine.scheduling.request_states import request_states
from proxima_engine.telemetry import RequestState, SchedulerSnapshot, SnapshotPublisher

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.engine import EngineCoreOutputs
    from vllm.v1.request import Request

    from proxima_engine.scheduler import ProximaScheduler
    from proxima_engine.scheduling.guard import PolicyGuard
    from proxima_engine.scheduling.options import SchedulerOptions
    from proxima_engine.scheduling.view_builder import ViewBuilder

REQUESTS_INTERVAL_S = 0.5
"""Shortest time between two snapshots that name each request."""
_STEP_WEIGHT = 0.2
"""Share of the newest step in the average duration."""


class SchedulerReport:
    def __init__(
        self, scheduler: ProximaScheduler, view: ViewBuilder, guard: PolicyGuard, options: SchedulerOptions
    ) -> None:
        self._scheduler = scheduler
        self._view = view
        self._guard = guard
        self._interval_s = options.snapshot_interval_s
        self._max_wait_s = options.max_wait_s
        self._publisher: SnapshotPublisher | None = None
        if options.snapshot_endpoint:
            endpoint = os.path.expandvars(options.snapshot_endpoint)
            self._publisher = SnapshotPublisher(endpoint, options.snapshot_interval_s)
        self._plan = Plan(order=())
        self._plan_took_s = 0.0
        self._decisions = DecisionLog(scheduler)
        self._steps = 0
        self._backfills = 0
        self._preemptions = 0
        self._recomputed = Recomputed()
        self._yields: Counter[str] = Counter()
        self._plan_time_s = 0.0
        self._tokens = DecayingRate()
        self._finished = DecayingRate()
        self._steps_rate = DecayingRate()
        self._busy_step_s = 0.0
        self._stepped_s: float | None = None
        """When the last step ended; None if there was nothing to do after it."""
        self._published_s = 0.0
        self._named_s = 0.0

    def step_s(self) -> float:
        """Measured duration of a step in seconds; 0 before the first measurement."""
        rate = self._steps_rate.per_s()
        return 1 / rate if rate else 0.0

    def planned(self, plan: Plan, took_s: float) -> None:
        self._plan = plan
        self._plan_took_s = took_s
        self._steps += 1
        self._plan_time_s += took_s
        self._backfills += plan.backfilled
        for _, mode in plan.yields:
            self._yields[str(mode)] += 1

    def dispatched(self, output: SchedulerOutput) -> None:
        """What vLLM made of the plan."""
        self._recomputed.scheduled(output)
        if self._publisher is not None:
            self._decisions.dispatched(self._steps, self._plan, output, self._blocks_used, self._plan_took_s)

    def preempted(self, request: Request) -> None:
        """It is about to lose its blocks."""
        self._preemptions += 1
        self._recomputed.preempted(request)

    def ended(self, request_id: str) -> None:
        self._recomputed.ended(request_id)
        if self._publisher is not None:
            self._decisions.ended(request_id)

    def stepped(self, now_s: float, outputs: dict[int, EngineCoreOutputs]) -> None:
        """Take in what one finished step produced."""
        tokens = finished = 0
        for batch in outputs.values():
            for output in batch.outputs:
                tokens += len(output.new_token_ids)
                finished += output.finish_reason is not None
        self._tokens.add(now_s, tokens)
        self._finished.add(now_s, finished)
        self._steps_rate.add(now_s, 1)
        if self._stepped_s is not None:
            took_s = now_s - self._stepped_s
            self._busy_step_s += (took_s - self._busy_step_s) * (_STEP_WEIGHT if self._busy_step_s else 1)
        self._stepped_s = now_s
        if self._idle:
            self._stepped_s = None
            for rate in (self._tokens, self._finished, self._steps_rate):
                rate.rest()
        self.publish_if_due()

    def publish_if_due(self) -> None:
        """Offer a snapshot once per interval, and always when the engine is about to fall idle."""
        if self._publisher is None:
            return
        now_s = time.monotonic()
        if self._idle or now_s - self._published_s >= self._interval_s:
            self._published_s = now_s
            if self._idle:
                self._decisions.fell_idle(self._steps)
            name_requests = self._idle or now_s - self._named_s >= REQUESTS_INTERVAL_S
            if name_requests:
                self._named_s = now_s
            self._publisher.offer(self.snapshot(name_requests=name_requests), self._decisions.take())

    @property
    def _idle(self) -> bool:
        return not self._scheduler.running and not self._scheduler.waiting

    def close(self) -> None:
        if self._publisher is not None:
            self._publisher.close()

    def requests(self) -> list[RequestState]:
        """Everybody in this engine, and when those who wait are forecast to start."""
        return request_states(self._scheduler, self._view, self._plan, self._finished.per_s())

    @property
    def _blocks_used(self) -> int:
        return self._view.blocks_total - int(self._scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def snapshot(self, *, name_requests: bool = False) -> SchedulerSnapshot:
        scheduler, guard = self._scheduler, self._guard
        policy = scheduler.proxima_policy
        checked = exceeded = 0
        if isinstance(policy, ChecksForecasts):
            checked, exceeded = policy.forecasts_checked, policy.forecasts_exceeded
        running, waiting = scheduler.get_request_counts()
        blocks_total = self._view.blocks_total
        blocks_used = self._blocks_used
        return SchedulerSnapshot(
            **self._swapped(),
            rank=scheduler.parallel_config.data_parallel_index,
            time_s=time.time(),
            step=self._steps,
            running=running,
            waiting=self._waiting_by_reason(),
            waiting_tokens=self._waiting_tokens(),
            oldest_wait_s=self._oldest_wait_s(time.time()),
            blocks_total=blocks_total,
            blocks_used=blocks_used,
            blocks_peak=max(blocks_used, self._plan.peak_blocks) if running or waiting else 0,
            step_s=self._busy_step_s,
            output_tokens_per_s=self._tokens.per_s() if running else 0.0,
            finished_per_s=self._finished.per_s(),
            estimated_start_s=self._estimated_start_s(),
            backfills_total=self._backfills,
            yields_total=dict(self._yields),
            preemptions_total=self._preemptions,
            recomputed_tokens_total=self._recomputed.total,
            forecasts_checked_total=checked,
            forecasts_exceeded_total=exceeded,
            plan_time_s_total=self._plan_time_s,
            policy_state=str(guard.state),
            policy_failures_total=guard.failures_total,
            policy_last_error=guard.last_error,
            requests=self.requests() if name_requests else None,
        )

    def _swapped(self) -> dict[str, Any]:
        swap = self._scheduler.proxima_swap
        if swap is None:
            return {}
        counters = swap.counters
        return {
            "host_blocks_total": swap.ledger.host_blocks,
            "host_blocks_used": swap.ledger.blocks_used,
            "host_blocks_kept": swap.ledger.pool.blocks_kept,
            "swapped_blocks_total": {"out": counters.blocks_out, "in": counters.blocks_in},
            "swapped_bytes_total": {"out": counters.bytes_out, "in": counters.bytes_in},
            "swap_time_s_total": counters.copy_s,
            "swap_under_way_s_total": counters.under_way_s,
            "swap_ahead_blocks_total": {
                "stored": swap.store_ahead.blocks_stored,
                "stored_used": swap.ledger.blocks_used_of_ahead,
                "fetched": counters.blocks_fetched,
                "fetched_used": counters.blocks_found_fetched,
            },
            "recompute_tokens_avoided_total": counters.tokens_kept,
            "prefix_tokens_restored_total": counters.prefix_tokens,
            "swap_failures_total": {"no_room": counters.no_room, "copy": counters.failed},
        }

    def _waiting_by_reason(self) -> dict[str, dict[str, int]]:
        """Reason -> class -> waiting requests. Those that arrived since the last plan, or lie beyond its look-ahead,
        wait behind the head."""
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for request, default in self._waiting():
            reason = self._plan.held.get(request.request_id, default)
            counts[str(reason)][str(self._view.class_of(request))] += 1
        return {reason: dict(by_class) for reason, by_class in counts.items()}

    def _waiting_tokens(self) -> dict[str, int]:
        tokens: Counter[str] = Counter()
        for request, _ in self._waiting():
            tokens[str(self._view.class_of(request))] += request.num_tokens
        return dict(tokens)

    def _oldest_wait_s(self, now_s: float) -> dict[str, float]:
        """By class; `now_s` on the wall clock, as arrivals are."""
        oldest: dict[str, float] = {}
        for request, _ in self._waiting():
            if not request.num_output_tokens:
                name = str(self._view.class_of(request))
                oldest[name] = max(oldest.get(name, 0.0), now_s - request.arrival_time)
        return oldest

    def _estimated_start_s(self) -> dict[str, float]:
        """By class, when a request that arrives now would start: those that go before it divided by the rate at which
        requests end. Absent while some go before it and none has ended yet.

        As the policy orders them: it lets those pass who have waited for too long, and passes those of its level who
        have missed the target for their first token.
        """
        now_s = self._scheduler.proxima_clock()
        waiting, late, overdue = Counter[int](), Counter[int](), 0
        for request, _ in self._waiting():
            if request.num_output_tokens or now_s - request.arrival_time >= self._max_wait_s:
                overdue += 1
                continue
            level = CLASS_LEVEL[self._view.class_of(request)]
            waiting[level] += 1
            late[level] += now_s - request.arrival_time > self._view.ttft_s_of(request)
        rate = self._finished.per_s()
        estimates = {}
        for request_class, level in CLASS_LEVEL.items():
            ahead = overdue + sum(count for other, count in waiting.items() if other <= level) - late[level]
            if not ahead or rate:
                estimates[str(request_class)] = ahead / rate if ahead else 0.0
        return estimates

    def _waiting(self) -> Iterator[tuple[Request, Reason]]:
        """All who wait, with the reason of those of whom the plan says nothing."""
        for request in self._scheduler.waiting:
            yield request, Reason.BEHIND_HEAD
        for request in self._scheduler.kv_holding_waiting:
            yield request, Reason.REMOTE_KV
