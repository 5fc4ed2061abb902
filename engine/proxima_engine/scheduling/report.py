"""Counts what the scheduler does and publishes it as snapshots."""

from __future__ import annotations

import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from proxima_config.hints import RequestClass
from proxima_engine.policy.plan import Plan, Reason
from proxima_engine.policy.protocol import ChecksForecasts
from proxima_engine.policy.urgency import CLASS_LEVEL
from proxima_engine.scheduling.decision_log import DecisionLog
from proxima_engine.scheduling.rates import DecayingRate
from proxima_engine.scheduling.recomputed import Recomputed
from proxima_engine.scheduling.request_states import request_states
from proxima_engine.scheduling.waiting_tally import ClassTally, tally
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
PUBLISH_SHARE = 0.05
"""Part of the time that snapshots may take: they are made between two steps, and long where thousands wait."""
Tallies = Mapping[RequestClass, ClassTally]


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
        self._due_s = 0.0
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
        if self._idle or now_s >= self._due_s:
            if self._idle:
                self._decisions.fell_idle(self._steps)
            name_requests = self._idle or now_s - self._named_s >= REQUESTS_INTERVAL_S
            if name_requests:
                self._named_s = now_s
            self._publisher.offer(self.snapshot(name_requests=name_requests), self._decisions.take())
            self._due_s = now_s + max(self._interval_s, (time.monotonic() - now_s) / PUBLISH_SHARE)

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
        now_s = scheduler.proxima_clock()
        tallies = tally(self._view.everybody_waiting(), now_s, self._max_wait_s)
        blocks_total = self._view.blocks_total
        blocks_used = self._blocks_used
        return SchedulerSnapshot(
            **self._swapped(),
            rank=scheduler.parallel_config.data_parallel_index,
            time_s=time.time(),
            step=self._steps,
            running=running,
            waiting=self._waiting_by_reason(tallies),
            waiting_tokens={str(name): found.tokens for name, found in tallies.items()},
            oldest_wait_s={
                str(name): now_s - found.first_arrival_s
                for name, found in tallies.items()
                if found.first_arrival_s < math.inf
            },
            blocks_total=blocks_total,
            blocks_used=blocks_used,
            blocks_peak=max(blocks_used, self._plan.peak_blocks) if running or waiting else 0,
            step_s=self._busy_step_s,
            output_tokens_per_s=self._tokens.per_s() if running else 0.0,
            finished_per_s=self._finished.per_s(),
            estimated_start_s=self._estimated_start_s(tallies),
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

    def _waiting_by_reason(self, tallies: Tallies) -> dict[str, dict[str, int]]:
        """Reason -> class -> waiting requests. Those that arrived since the last plan, or lie beyond its look-ahead,
        wait behind the head."""
        counts: defaultdict[Reason, Counter[RequestClass]] = defaultdict(Counter)
        for request_class, found in tallies.items():
            counts[Reason.BEHIND_HEAD][request_class] = found.requests
        queue = self._scheduler.waiting
        named = [(queue.find(request_id), reason) for request_id, reason in self._plan.held.items()]
        named += [(request, Reason.REMOTE_KV) for request in self._scheduler.kv_holding_waiting]
        for request, reason in named:
            if request is not None:
                request_class = self._view.class_of(request)
                counts[Reason.BEHIND_HEAD][request_class] -= 1
                counts[reason][request_class] += 1
        # Of a counter, plus leaves out what is 0.
        return {
            str(reason): {str(request_class): count for request_class, count in some.items()}
            for reason, by_class in counts.items()
            if (some := +by_class)
        }

    def _estimated_start_s(self, tallies: Tallies) -> dict[str, float]:
        """By class, when a request that arrives now would start: those that go before it divided by the rate at which
        requests end. Absent while some go before it and none has ended yet.

        As the policy orders them: it lets those pass who have waited for too long, and passes those of its level who
        have missed the target for their first token.
        """
        urgent, waiting, late = 0, Counter[int](), Counter[int]()
        for request_class, found in tallies.items():
            level = CLASS_LEVEL[request_class]
            urgent += found.urgent
            waiting[level] += found.requests - found.urgent
            late[level] += found.late
        rate = self._finished.per_s()
        estimates = {}
        for request_class, level in CLASS_LEVEL.items():
            ahead = urgent + sum(count for other, count in waiting.items() if other <= level) - late[level]
            if not ahead or rate:
                estimates[str(request_class)] = ahead / rate if ahead else 0.0
        return estimates
