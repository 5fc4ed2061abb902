"""The newest scheduler snapshot of each engine rank, read when Prometheus asks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.registry import Collector

from proxima_config.hints import RequestClass
from proxima_config.metrics import scheduler as catalogue
from proxima_config.metrics.metric import Metric
from proxima_engine.policy.plan import Reason, YieldMode
from proxima_engine.scheduling.guard import PolicyState
from proxima_engine.telemetry import SchedulerSnapshot
from proxima_server.metrics.families import Family, family

Snapshots = Callable[[], Mapping[int, SchedulerSnapshot]]
"""Asked at each scrape: a restarted engine has others."""
_NONE_WAITS = {str(each): 0.0 for each in RequestClass}
_UNKNOWN_STARTS = {str(each): math.nan for each in RequestClass}


class SchedulerCollector(Collector):
    """Shows every series of every rank from the start, as zero until its first snapshot arrives.

    An estimate that the scheduler cannot make yet is NaN: zero would promise an immediate start.
    """

    def __init__(self, snapshots: Snapshots, ranks: int, initial_state: PolicyState) -> None:
        self._snapshots = snapshots
        self._ranks = ranks
        self._initial_state = initial_state

    def collect(self) -> Iterator[Family]:
        snapshots = self._snapshots()
        latest = {rank: snapshots.get(rank) or _blank(rank, self._initial_state) for rank in range(self._ranks)}
        for metric, field in _PLAIN.items():
            yield family(metric, [((str(rank),), getattr(now, field)) for rank, now in latest.items()])
        yield family(
            catalogue.SCHEDULER_WAITING,
            [
                ((str(rank), reason, name), count)
                for rank, now in latest.items()
                for reason, classes in _with_all_reasons(now).items()
                for name, count in classes.items()
            ],
        )
        for metric, field in _BY_CLASS.items():
            yield family(
                metric,
                [
                    ((str(rank), name), value)
                    for rank, now in latest.items()
                    for name, value in (_NONE_WAITS | getattr(now, field)).items()
                ],
            )
        yield family(
            catalogue.ESTIMATED_START,
            [
                ((str(rank), name), seconds)
                for rank, now in latest.items()
                for name, seconds in (_UNKNOWN_STARTS | now.estimated_start_s).items()
            ],
        )
        yield family(
            catalogue.YIELDS,
            [
                ((str(rank), mode.value), now.yields_total.get(mode.value, 0))
                for rank, now in latest.items()
                for mode in YieldMode
            ],
        )
        for metric, (values, field) in _BY_LABEL.items():
            yield family(
                metric,
                [
                    ((str(rank), value), getattr(now, field).get(value, 0))
                    for rank, now in latest.items()
                    for value in values
                ],
            )
        yield family(
            catalogue.POLICY_STATE,
            [
                ((str(rank), state.value), float(now.policy_state == state))
                for rank, now in latest.items()
                for state in PolicyState
            ],
        )


_PLAIN: Mapping[Metric, str] = {
    catalogue.SCHEDULER_STEPS: "step",
    catalogue.SCHEDULER_RUNNING: "running",
    catalogue.BLOCKS_TOTAL: "blocks_total",
    catalogue.BLOCKS_USED: "blocks_used",
    catalogue.BLOCKS_PEAK: "blocks_peak",
    catalogue.OUTPUT_RATE: "output_tokens_per_s",
    catalogue.DRAIN_RATE: "finished_per_s",
    catalogue.BACKFILLS: "backfills_total",
    catalogue.PREEMPTIONS: "preemptions_total",
    catalogue.FORECASTS_CHECKED: "forecasts_checked_total",
    catalogue.FORECASTS_EXCEEDED: "forecasts_exceeded_total",
    catalogue.HOST_BLOCKS_TOTAL: "host_blocks_total",
    catalogue.HOST_BLOCKS_USED: "host_blocks_used",
    catalogue.HOST_BLOCKS_KEPT: "host_blocks_kept",
    catalogue.SWAP_TIME: "swap_time_s_total",
    catalogue.SWAP_UNDER_WAY: "swap_under_way_s_total",
    catalogue.RECOMPUTED: "recomputed_tokens_total",
    catalogue.RECOMPUTE_AVOIDED: "recompute_tokens_avoided_total",
    catalogue.PREFIX_RESTORED: "prefix_tokens_restored_total",
    catalogue.PLAN_TIME: "plan_time_s_total",
    catalogue.POLICY_FAILURES: "policy_failures_total",
}


_BY_LABEL: Mapping[Metric, tuple[Sequence[str], str]] = {
    catalogue.SWAPPED_BLOCKS: (("out", "in"), "swapped_blocks_total"),
    catalogue.SWAPPED_BYTES: (("out", "in"), "swapped_bytes_total"),
    catalogue.SWAP_AHEAD: (("stored", "stored_used", "fetched", "fetched_used"), "swap_ahead_blocks_total"),
    catalogue.SWAP_FAILURES: (("no_room", "copy"), "swap_failures_total"),
}
_BY_CLASS: Mapping[Metric, str] = {
    catalogue.SCHEDULER_WAITING_TOKENS: "waiting_tokens",
    catalogue.SCHEDULER_OLDEST_WAIT: "oldest_wait_s",
}


def _with_all_reasons(snapshot: SchedulerSnapshot) -> dict[str, dict[str, int]]:
    reasons = {reason.value: {str(RequestClass.DEFAULT): 0} for reason in Reason}
    for reason, classes in snapshot.waiting.items():
        reasons[reason] = {**reasons.get(reason, {}), **classes}
    return reasons


def _blank(rank: int, policy_state: PolicyState) -> SchedulerSnapshot:
    return SchedulerSnapshot(
        rank=rank,
        time_s=time.time(),
        step=0,
        running=0,
        waiting={},
        blocks_total=0,
        blocks_used=0,
        blocks_peak=0,
        output_tokens_per_s=0.0,
        finished_per_s=0.0,
        estimated_start_s={},
        backfills_total=0,
        yields_total={},
        preemptions_total=0,
        plan_time_s_total=0.0,
        policy_state=policy_state.value,
        policy_failures_total=0,
    )
