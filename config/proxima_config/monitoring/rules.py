"""Alerts and recording rules for Prometheus, as text of a rules file.

Every metric of ours is named through the catalogue, so that a rename reaches its alerts. Each alert links to the part
of the runbook that says what to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

from proxima_config.metrics import door, gpu, process, requests, scheduler

RUNBOOK = "https://github.com/proxima-gateway/proxima-gateway/blob/main/docs/operations.md"
ERROR_BUDGET = 0.01
"""Share of requests that may fail. An SLO of 99 %."""
# Google's SRE workbook: 2 % of a month's budget in an hour, 5 % in six hours.
_FAST_BURN, _SLOW_BURN = 14.4, 6
_SERVICE = "namespace, job"
_REPLICA = "namespace, job, pod, instance"


@dataclass(frozen=True)
class Alert:
    name: str
    expression: str
    hold: str
    """How long it must be true, in Prometheus' words."""
    severity: str
    summary: str
    runbook: str
    """Heading of docs/operations.md, as in a link."""
    device_only: bool = False
    """Needs a GPU to have data."""


@dataclass(frozen=True)
class Recording:
    name: str
    expression: str


def _failed(window: str) -> str:
    """Share of requests that failed, by service."""

    def ended(outcomes: str) -> str:
        return f'sum by ({_SERVICE}) (rate({requests.REQUESTS.name}{{outcome=~"{outcomes}"}}[{window}]))'

    return f"({ended('failed')} / {ended('ok|failed')})"


def _burn(long: str, short: str, factor: float) -> str:
    limit = f"{factor * ERROR_BUDGET:g}"
    return f"{_failed(long)} > {limit} and {_failed(short)} > {limit}"


_QUEUE = f"sum by ({_REPLICA}) ({scheduler.SCHEDULER_WAITING.name}) + sum by ({_REPLICA}) ({door.DOOR_WAITING.name})"
_BLOCKS = f"(sum by ({_REPLICA}) ({scheduler.BLOCKS_TOTAL.name}) > 0)"
_KV_USED = f"100 * sum by ({_REPLICA}) ({scheduler.BLOCKS_USED.name}) / {_BLOCKS}"
_POLICY_OFF = (
    f'max by ({_REPLICA}) ({scheduler.POLICY_STATE.name}{{state=~"degraded|native"}}) == 1 '
    f'and on ({_REPLICA}) {process.SCHEDULER_INFO.name}{{kind="proxima"}}'
)
_STALLS = f"histogram_quantile(0.99, sum by ({_SERVICE}, le) (rate({requests.INTER_TOKEN.name}_bucket[5m]))) > 5"

RECORDINGS = (
    Recording("proxima:queue_requests", _QUEUE),
    Recording("proxima:kv_used_percent", _KV_USED),
)
"""What autoscalers ask for, one series for each replica."""

ALERTS = (
    Alert(
        "ProximaNotServing",
        f"{process.ENGINE_UP.name} == 0 and {process.DRAINING.name} == 0",
        "30m",
        "critical",
        "A replica has not served for half an hour: it still loads, or its engine is lost.",
        "the-model-does-not-start",
    ),
    Alert(
        "ProximaEngineHung",
        f"{process.ENGINE_STALLED.name} > 30",
        "1m",
        "critical",
        "The engine has requests and makes no step.",
        "requests-fail",
    ),
    Alert(
        "ProximaEngineRestarted",
        f"increase({process.ENGINE_RESTARTS.name}[1h]) > 0",
        "0m",
        "warning",
        "An engine died or hung and was started again.",
        "out-of-memory",
    ),
    Alert(
        "ProximaErrorBudgetFast",
        _burn("1h", "5m", _FAST_BURN),
        "2m",
        "critical",
        f"Requests fail {_FAST_BURN:g} times as often as an SLO of {1 - ERROR_BUDGET:.0%} bears.",
        "requests-fail",
    ),
    Alert(
        "ProximaErrorBudgetSlow",
        _burn("6h", "30m", _SLOW_BURN),
        "15m",
        "warning",
        f"Requests have failed {_SLOW_BURN} times as often as an SLO of {1 - ERROR_BUDGET:.0%} bears, for hours.",
        "requests-fail",
    ),
    Alert(
        "ProximaQueueGrows",
        f"({_QUEUE}) > 16 and deriv(proxima:queue_requests[10m]) > 0",
        "10m",
        "warning",
        "More requests come than end: the queue has grown for ten minutes.",
        "the-95th-percentile-rose",
    ),
    Alert(
        "ProximaOverloaded",
        f"max by ({_REPLICA}) ({scheduler.ESTIMATED_START.name}) > 10",
        "5m",
        "warning",
        "A request that comes now would wait for more than ten seconds.",
        "the-95th-percentile-rose",
    ),
    Alert(
        "ProximaKvPressure",
        f"({_KV_USED}) > 95 and on ({_REPLICA}) "
        f'sum by ({_REPLICA}) ({scheduler.SCHEDULER_WAITING.name}{{reason=~"blocks|forecast|behind_head"}}) > 0',
        "10m",
        "warning",
        "Requests wait for KV blocks, and nearly all are in use.",
        "throughput-does-not-rise",
    ),
    Alert(
        "ProximaStreamsStall",
        _STALLS,
        "5m",
        "warning",
        "One in a hundred tokens comes more than five seconds after the one before.",
        "the-95th-percentile-rose",
    ),
    Alert(
        "ProximaPolicyOff",
        _POLICY_OFF,
        "0m",
        "warning",
        "The scheduling policy failed (fail-open): requests go by arrival order.",
        "the-95th-percentile-rose",
    ),
    Alert(
        "ProximaDrainOverrun",
        f"{process.DRAINING.name} == 1 and {process.REQUESTS_REMAINING.name} > 0 and {process.DRAIN_SECONDS.name} < 5",
        "0m",
        "warning",
        "A drain ends in seconds, and requests are left: they will get an error.",
        "requests-fail",
    ),
    Alert(
        "ProximaGpuIdleWhileQueued",
        f"max by ({_REPLICA}) ({gpu.GPU_UTIL.name}) < 10 and on ({_REPLICA}) "
        f"sum by ({_REPLICA}) ({scheduler.SCHEDULER_WAITING.name}) > 0",
        "2m",
        "critical",
        "Requests wait in the engine while its GPUs do nothing.",
        "throughput-does-not-rise",
        device_only=True,
    ),
    Alert(
        "ProximaGpuUnderused",
        f"avg by ({_SERVICE}) (avg_over_time({gpu.GPU_UTIL.name}[1h])) < 50",
        "6h",
        "info",
        "GPUs have been less than half busy for hours: fewer would do.",
        "throughput-does-not-rise",
        device_only=True,
    ),
    Alert(
        "ProximaGpuError",
        f"{gpu.GPU_XID.name} > 0",
        "0m",
        "warning",
        "The driver reported an Xid error; its value says which.",
        "requests-fail",
        device_only=True,
    ),
)


def rules() -> str:
    """The rules file."""
    groups = [
        {"name": "proxima-recordings", "rules": [_recording(each) for each in RECORDINGS]},
        {"name": "proxima-alerts", "rules": [_alert(each) for each in ALERTS]},
    ]
    head = "# Generated from config/proxima_config/monitoring/rules.py by `make docs`.\n"
    return head + yaml.safe_dump({"groups": groups}, sort_keys=False, width=10_000, allow_unicode=True)


def _recording(recording: Recording) -> dict[str, Any]:
    return {"record": recording.name, "expr": recording.expression}


def _alert(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expression,
        "for": alert.hold,
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "runbook_url": f"{RUNBOOK}#{alert.runbook}"},
    }
