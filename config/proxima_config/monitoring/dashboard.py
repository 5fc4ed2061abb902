"""The Grafana dashboard, as JSON. Every metric of ours is named through the catalogue."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from proxima_config.metrics import door, gpu, process, requests, scheduler
from proxima_config.metrics.metric import Kind, Metric
from proxima_config.metrics_catalogue import METRICS

_WHERE = 'namespace=~"$namespace",job=~"$job",instance=~"$instance"'
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT = 8, 8
_COLUMNS = 24 // _WIDTH


@dataclass(frozen=True)
class Query:
    expression: str
    legend: str


@dataclass(frozen=True)
class Panel:
    title: str
    unit: str
    """Of Grafana: s, percent, reqps, none, ..."""
    queries: tuple[Query, ...]
    about: str = ""
    device_only: bool = False
    """Needs a GPU to have data."""


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...] = field(default=())


def of(metric: Metric | str, more: str = "") -> str:
    """A selector of the metric with the dashboard's variables."""
    name = metric if isinstance(metric, str) else metric.name
    return f"{name}{{{_WHERE}{',' + more if more else ''}}}"


def _rate(metric: Metric, by: str, more: str = "") -> str:
    return f"sum by ({by}) (rate({of(metric, more)}[$__rate_interval]))"


def _sum(metric: Metric, by: str, more: str = "") -> str:
    return f"sum by ({by}) ({of(metric, more)})"


def _latency(title: str, metric: Metric, about: str) -> Panel:
    buckets = f"sum by (le) (rate({of(f'{metric.name}_bucket')}[$__rate_interval]))"
    quantiles = ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
    return Panel(
        title, "s", tuple(Query(f"histogram_quantile({q}, {buckets})", legend) for q, legend in quantiles), about
    )


_KV_SHARE = f"100 * {_sum(scheduler.BLOCKS_USED, 'instance')} / {_sum(scheduler.BLOCKS_TOTAL, 'instance')}"
_PEAK_SHARE = f"100 * {_sum(scheduler.BLOCKS_PEAK, 'instance')} / {_sum(scheduler.BLOCKS_TOTAL, 'instance')}"
_CHECKED = _rate(scheduler.FORECASTS_CHECKED, "instance")
_EXCEEDED = f"100 * {_rate(scheduler.FORECASTS_EXCEEDED, 'instance')} / {_CHECKED}"
_IN_FLIGHT = _sum(requests.HTTP_IN_FLIGHT, "instance")
_PLANNING = _rate(scheduler.PLAN_TIME, "instance")

_ROWS = (
    Row(
        "Overview",
        (
            Panel("Replicas that serve", "none", (Query(f"sum({of(process.ENGINE_UP)})", "serving"),)),
            Panel("Requests that ended", "reqps", (Query(_rate(requests.REQUESTS, "outcome"), "{{outcome}}"),)),
            Panel(
                "Tokens",
                "none",
                (
                    Query(f"sum(rate({of(requests.OUTPUT_TOKENS)}[$__rate_interval]))", "output/s"),
                    Query(f"sum(rate({of(requests.PROMPT_TOKENS)}[$__rate_interval]))", "prompt/s"),
                    Query(f"sum(rate({of(requests.CACHED_TOKENS)}[$__rate_interval]))", "prompt from cache/s"),
                ),
            ),
            Panel("HTTP answers", "reqps", (Query(_rate(requests.HTTP_REQUESTS, "status"), "{{status}}"),)),
            Panel("Requests being answered", "none", (Query(_IN_FLIGHT, "{{instance}}"),)),
            Panel(
                "Refused at the door, and deadlines that passed",
                "reqps",
                (
                    Query(_rate(door.REJECTIONS, "reason"), "refused: {{reason}}"),
                    Query(_rate(door.DEADLINES_EXPIRED, "deadline"), "late: {{deadline}}"),
                ),
            ),
        ),
    ),
    Row(
        "Latency",
        (
            _latency("Time to first token", requests.TTFT, requests.TTFT.help),
            _latency("Between two tokens", requests.INTER_TOKEN, requests.INTER_TOKEN.help),
            _latency("Whole answer", requests.REQUEST_TIME, requests.REQUEST_TIME.help),
            _latency("Wait for the first step", requests.QUEUE_TIME, requests.QUEUE_TIME.help),
            Panel(
                "A request that comes now would start in",
                "s",
                (Query(f"max by (class) ({of(scheduler.ESTIMATED_START)})", "{{class}}"),),
                scheduler.ESTIMATED_START.help,
            ),
            Panel(
                "Oldest that waits",
                "s",
                (
                    Query(f"max by (class) ({of(scheduler.SCHEDULER_OLDEST_WAIT)})", "engine: {{class}}"),
                    Query(f"max by (class) ({of(door.DOOR_OLDEST_WAIT)})", "door: {{class}}"),
                ),
            ),
        ),
    ),
    Row(
        "Queue and KV",
        (
            Panel(
                "Requests that run and wait",
                "none",
                (
                    Query(f"sum({of(scheduler.SCHEDULER_RUNNING)})", "running"),
                    Query(_sum(scheduler.SCHEDULER_WAITING, "reason"), "waiting: {{reason}}"),
                    Query(f"sum({of(door.DOOR_WAITING)})", "at the door"),
                ),
            ),
            Panel(
                "KV blocks in use, and forecast peak",
                "percent",
                (Query(_KV_SHARE, "used {{instance}}"), Query(_PEAK_SHARE, "peak {{instance}}")),
                scheduler.BLOCKS_PEAK.help,
            ),
            Panel(
                "Tokens that wait",
                "none",
                (
                    Query(f"sum({of(scheduler.SCHEDULER_WAITING_TOKENS)})", "engine"),
                    Query(f"sum({of(door.DOOR_WAITING_TOKENS)})", "door"),
                ),
            ),
        ),
    ),
    Row(
        "Scheduler",
        (
            Panel(
                "State of the policy",
                "none",
                (Query(f"max by (instance, state) ({of(scheduler.POLICY_STATE)})", "{{instance}} {{state}}"),),
                scheduler.POLICY_STATE.help,
            ),
            Panel(
                "Backfills, yields, preemptions",
                "ops",
                (
                    Query(_rate(scheduler.BACKFILLS, "instance"), "backfills {{instance}}"),
                    Query(_rate(scheduler.YIELDS, "mode"), "yields: {{mode}}"),
                    Query(_rate(scheduler.PREEMPTIONS, "instance"), "preemptions {{instance}}"),
                ),
            ),
            Panel(
                "Forecasts exceeded", "percent", (Query(_EXCEEDED, "{{instance}}"),), scheduler.FORECASTS_EXCEEDED.help
            ),
            Panel("Time spent planning, seconds a second", "none", (Query(_PLANNING, "{{instance}}"),)),
            Panel("Steps", "ops", (Query(_rate(scheduler.SCHEDULER_STEPS, "instance"), "{{instance}}"),)),
            Panel(
                "Life cycle",
                "none",
                (
                    Query(_sum(process.DRAINING, "instance"), "draining {{instance}}"),
                    Query(_sum(process.ENGINE_STALLED, "instance"), "stalled for, s {{instance}}"),
                    Query(f"sum by (instance) (increase({of(process.ENGINE_RESTARTS)}[1h]))", "restarts {{instance}}"),
                ),
            ),
        ),
    ),
    Row(
        "GPU",
        tuple(
            Panel(title, unit, (Query(of(metric), "{{instance}} {{gpu}}"),), metric.help, device_only=True)
            for title, unit, metric in (
                ("Utilisation", "percent", gpu.GPU_UTIL),
                ("Memory in use", "decmbytes", gpu.GPU_FB_USED),
                ("Power", "watt", gpu.GPU_POWER),
                ("Temperature", "celsius", gpu.GPU_TEMP),
                ("Clock", "none", gpu.GPU_SM_CLOCK),
                ("Last Xid error", "none", gpu.GPU_XID),
            )
        ),
    ),
    Row(
        "By API key",
        (
            Panel("Requests", "reqps", (Query(_rate(requests.KEY_REQUESTS, "key, outcome"), "{{key}} {{outcome}}"),)),
            Panel("Tokens a second", "none", (Query(_rate(requests.KEY_TOKENS, "key, kind"), "{{key}} {{kind}}"),)),
        ),
    ),
)


def _plain(metric: Metric) -> Panel:
    """A metric as it is, or its rate."""
    labels = ", ".join(("instance", *(label for label in metric.labels if label != "engine")))
    legend = " ".join(f"{{{{{label}}}}}" for label in labels.split(", "))
    expression = _rate(metric, labels) if metric.kind is Kind.COUNTER else _sum(metric, labels)
    device_only = metric.name.startswith("DCGM_")
    return Panel(metric.name, "none", (Query(expression, legend),), metric.help, device_only=device_only)


def _others() -> Row:
    """What no other panel shows, so that none is missing."""
    shown = " ".join(query.expression for row in _ROWS for panel in row.panels for query in panel.queries)
    names = set(re.findall(r"\w+", shown))
    return Row("Others", tuple(_plain(each) for each in METRICS if names.isdisjoint(_series(each))))


def _series(metric: Metric) -> set[str]:
    return {metric.name, f"{metric.name}_bucket"}


ROWS = (*_ROWS, _others())


def dashboard() -> str:
    """The dashboard as JSON text."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in ROWS:
        place = {"h": 1, "w": 24, "x": 0, "y": top}
        panels.append({"id": len(panels) + 1, "type": "row", "title": row.title, "gridPos": place, "panels": []})
        top += 1
        for index, panel in enumerate(row.panels):
            column, line = index % _COLUMNS, index // _COLUMNS
            place = {"h": _HEIGHT, "w": _WIDTH, "x": column * _WIDTH, "y": top + line * _HEIGHT}
            panels.append(_panel(panel, len(panels) + 1, place))
        top += _HEIGHT * -(-len(row.panels) // _COLUMNS)
    board = {
        "uid": "proxima-gateway",
        "title": "Proxima Gateway",
        "description": "Generated from config/proxima_config/monitoring/dashboard.py by `make docs`.",
        "tags": ["proxima", "vllm", "llm"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": panels,
    }
    return json.dumps(board, indent=1, ensure_ascii=False) + "\n"


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "gridPos": place,
        "datasource": _DATASOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": _DATASOURCE, "expr": query.expression}
            | {"legendFormat": query.legend}
            for index, query in enumerate(panel.queries)
        ],
    }


def _variables() -> list[dict[str, Any]]:
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    # Prometheus without Kubernetes has no namespaces: `.*` matches what is not there as well.
    return [source, *(_variable(name) for name in ("namespace", "job", "instance"))]


def _variable(name: str) -> dict[str, Any]:
    query = f"label_values({process.BUILD_INFO.name}, {name})"
    return {
        "name": name,
        "type": "query",
        "datasource": _DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
