"""The document of one moment: gateway, door, engine, latencies and requests."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from proxima_engine.telemetry import Phase, RequestState, SchedulerSnapshot
from proxima_server.gateway import Gateway
from proxima_server.live.latency import SAMPLE_S, RecentLatency
from proxima_server.live.requests import rows
from proxima_server.versions import proxima_version

VERSION = 1
"""Of the document: raised when what it says is called otherwise."""


_ENGINE_FIELDS = ("running", "waiting", "finished_per_s", "yields_total", "preemptions_total", "backfills_total")


class LiveState:
    """Reads what the gateway knows already; asks the engine nothing."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._encode = msgspec.json.Encoder().encode
        self._counted: tuple[float, int] | None = None
        self._begun_s = time.monotonic()
        self._latency = RecentLatency(gateway.request_metrics, self._begun_s)

    async def remember_latency(self) -> None:
        """Until cancelled: so that also the first document is of the last minute, not of all time."""
        while True:
            await asyncio.sleep(SAMPLE_S)
            self._latency.remember(time.monotonic())

    def document(self) -> bytes:
        """As JSON."""
        gateway = self._gateway
        receiver = gateway.runtime.snapshot_receiver
        snapshots = receiver.latest
        shown, left_out = rows(
            gateway.active_requests, receiver.requests, gateway.settings.scheduler.ttft_s, told=bool(snapshots)
        )
        document = {
            "version": VERSION,
            "time_s": time.time(),
            "gateway": self._gateway_state(),
            "door": self._door(),
            "engine": _engine(snapshots) | {"output_tokens_per_s": self._output_rate(snapshots)},
            "swap": _swap(snapshots, receiver.requests),
            "ranks": [_rank(snapshot) for _, snapshot in sorted(snapshots.items())],
            "latency": self._latency.report(time.monotonic()),
            "requests": shown,
            "requests_left_out": left_out,
        }
        return self._encode(document)

    def _gateway_state(self) -> dict[str, Any]:
        gateway, drain = self._gateway, self._gateway.drain
        return {
            "version": proxima_version(),
            "model": gateway.settings.model,
            "scheduler": gateway.settings.scheduler.kind,
            "phase": gateway.phase.value,
            "ready": gateway.ready,
            "draining": drain.draining,
            "drain_remaining_requests": drain.remaining if drain.draining else 0,
            "drain_remaining_s": round(drain.remaining_s, 1) if drain.draining else None,
            "failure": gateway.failure,
            "restarts": gateway.restarts,
            "uptime_s": round(time.monotonic() - self._begun_s, 1),
            "policy": gateway.policy_state(),
        }

    def _door(self) -> dict[str, Any]:
        door = self._gateway.door
        waiting = door.turns.waiting()
        return {
            "waiting": sum(visit.entry.sequences for visit in waiting),
            "keys_required": door.keys.required,
            "rejected_total": {str(why): count for why, count in door.refusals.counts.items()},
            "deadlines_expired_total": {which.value: count for which, count in door.expired.items()},
        }

    def _output_rate(self, snapshots: Mapping[int, SchedulerSnapshot]) -> float | None:
        """Output tokens per second: as the schedulers measure it, or since the last document where none does; None
        for the first of these."""
        now_s = time.monotonic()
        tokens = sum(of_class.output_tokens for of_class in self._gateway.request_metrics.classes())
        before, self._counted = self._counted, (now_s, tokens)
        if snapshots:
            return round(sum(snapshot.output_tokens_per_s for snapshot in snapshots.values()), 1)
        if before is None or now_s <= before[0]:
            return None
        return round((tokens - before[1]) / (now_s - before[0]), 1)


def _engine(snapshots: Mapping[int, SchedulerSnapshot]) -> dict[str, Any]:
    """All ranks together; without any nothing is known, which is not the same as nothing going on."""
    if not snapshots:
        return dict.fromkeys(_ENGINE_FIELDS)
    reasons: dict[str, int] = {}
    yields: dict[str, int] = {}
    for snapshot in snapshots.values():
        for reason, classes in snapshot.waiting.items():
            reasons[reason] = reasons.get(reason, 0) + sum(classes.values())
        for mode, count in snapshot.yields_total.items():
            yields[mode] = yields.get(mode, 0) + count
    return {
        "running": sum(snapshot.running for snapshot in snapshots.values()),
        "waiting": reasons,
        "finished_per_s": round(sum(snapshot.finished_per_s for snapshot in snapshots.values()), 3),
        "yields_total": yields,
        "preemptions_total": sum(snapshot.preemptions_total for snapshot in snapshots.values()),
        "backfills_total": sum(snapshot.backfills_total for snapshot in snapshots.values()),
    }


def _swap(
    snapshots: Mapping[int, SchedulerSnapshot], requests: Mapping[int, Iterable[RequestState]]
) -> dict[str, Any] | None:
    """KV of requests that yielded in the host memory of all ranks; None where none is kept."""
    if not any(snapshot.host_blocks_total for snapshot in snapshots.values()):
        return None
    blocks, sizes, failures = Counter[str](), Counter[str](), Counter[str]()
    for snapshot in snapshots.values():
        blocks.update(snapshot.swapped_blocks_total)
        sizes.update(snapshot.swapped_bytes_total)
        failures.update(snapshot.swap_failures_total)
    return {
        "requests": sum(state.phase is Phase.SWAPPED for of_rank in requests.values() for state in of_rank),
        "host_blocks_total": sum(snapshot.host_blocks_total for snapshot in snapshots.values()),
        "host_blocks_used": sum(snapshot.host_blocks_used for snapshot in snapshots.values()),
        "blocks_total": blocks,
        "bytes_total": sizes,
        "recompute_tokens_avoided_total": sum(each.recompute_tokens_avoided_total for each in snapshots.values()),
        "failures_total": failures,
    }


def _rank(snapshot: SchedulerSnapshot) -> dict[str, Any]:
    return {
        "rank": snapshot.rank,
        "running": snapshot.running,
        "blocks_total": snapshot.blocks_total,
        "blocks_used": snapshot.blocks_used,
        "blocks_peak": snapshot.blocks_peak,
        "host_blocks_total": snapshot.host_blocks_total,
        "host_blocks_used": snapshot.host_blocks_used,
        "estimated_start_s": snapshot.estimated_start_s,
    }
