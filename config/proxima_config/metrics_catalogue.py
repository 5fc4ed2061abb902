"""Every metric of our own that `/metrics` shows; docs, dashboards and alerts are generated from this table.

vLLM's own metrics (`vllm:*`) are passed on verbatim and are not listed here. Counters are named with the `_total` that
Prometheus shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

_PAGE_HEAD = """\
# Metrics

`GET /metrics` answers in Prometheus' text format. Every series of the table is present from the first scrape on, before
the engine has loaded. vLLM's own metrics (`vllm:*`, under vLLM's own names) join when it has. The label `engine` is the
data-parallel rank, as with vLLM's metrics.

This page is generated from `config/proxima_config/metrics_catalogue.py` by `make docs`.

| name | type | labels | unit | meaning |
|---|---|---|---|---|
"""


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True)
class Metric:
    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    unit: str
    """Unit of the value, for people: "seconds", "blocks", "1" for plain counts and flags."""


BUILD_INFO = Metric(
    "proxima_build_info", Kind.GAUGE, ("version", "vllm_version"), "Always 1; the labels say what runs.", "1"
)
ENGINE_PHASE = Metric(
    "proxima_engine_phase",
    Kind.GAUGE,
    ("phase",),
    "1 for the phase the engine is in (starting, ready, failed, stopped), 0 for the others.",
    "1",
)
ENGINE_UP = Metric("proxima_engine_up", Kind.GAUGE, (), "1 while requests are served, else 0.", "1")
SCHEDULER_INFO = Metric(
    "proxima_scheduler_info", Kind.GAUGE, ("kind",), "Always 1; the label is the configured scheduler.", "1"
)
HTTP_REQUESTS = Metric(
    "proxima_http_requests_total",
    Kind.COUNTER,
    ("route", "method", "status"),
    "Requests answered, by route template and HTTP status; 499 is a client that left before the answer.",
    "requests",
)
HTTP_IN_FLIGHT = Metric(
    "proxima_http_requests_in_flight", Kind.GAUGE, (), "Requests being answered; a stream until it ends.", "requests"
)
IGNORED_PARAMS = Metric(
    "proxima_ignored_params_total",
    Kind.COUNTER,
    ("param",),
    "Parameters without effect in requests, named to the client in x-proxima-ignored-params; `other` is any unknown.",
    "requests",
)
STREAM_ERRORS = Metric(
    "proxima_stream_errors_total",
    Kind.COUNTER,
    ("code",),
    "Streams that ended with an error event after their status 200 was sent, by error code.",
    "streams",
)
SCHEDULER_STEPS = Metric(
    "proxima_scheduler_steps_total", Kind.COUNTER, ("engine",), "Steps scheduled since the engine started.", "steps"
)
SCHEDULER_RUNNING = Metric(
    "proxima_scheduler_running", Kind.GAUGE, ("engine",), "Requests that hold KV blocks and are computed.", "requests"
)
SCHEDULER_WAITING = Metric(
    "proxima_scheduler_waiting",
    Kind.GAUGE,
    ("engine", "reason", "class"),
    "Requests that wait, by the reason why they do not start and by their class.",
    "requests",
)
BLOCKS_TOTAL = Metric("proxima_kv_blocks", Kind.GAUGE, ("engine",), "KV blocks that requests can use.", "blocks")
BLOCKS_USED = Metric("proxima_kv_blocks_used", Kind.GAUGE, ("engine",), "KV blocks in use.", "blocks")
BLOCKS_PEAK = Metric(
    "proxima_kv_blocks_forecast_peak",
    Kind.GAUGE,
    ("engine",),
    "Highest number of KV blocks that those who run are forecast to use, at the policy's confidence.",
    "blocks",
)
OUTPUT_RATE = Metric(
    "proxima_output_tokens_per_second", Kind.GAUGE, ("engine",), "Output tokens per second, smoothed.", "tokens/s"
)
DRAIN_RATE = Metric(
    "proxima_finished_requests_per_second", Kind.GAUGE, ("engine",), "Requests finished per second, smoothed.", "1/s"
)
ESTIMATED_START = Metric(
    "proxima_estimated_start_seconds",
    Kind.GAUGE,
    ("engine", "class"),
    "Time until a request of this class that arrived now would start.",
    "seconds",
)
BACKFILLS = Metric(
    "proxima_backfills_total", Kind.COUNTER, ("engine",), "Requests started past an older one that did not fit.", "1"
)
YIELDS = Metric(
    "proxima_yields_total",
    Kind.COUNTER,
    ("engine", "mode"),
    "Running requests that the policy made give up their blocks, by how they get them back.",
    "requests",
)
PREEMPTIONS = Metric(
    "proxima_preemptions_total", Kind.COUNTER, ("engine",), "All preemptions, vLLM's own included.", "requests"
)
FORECASTS_CHECKED = Metric(
    "proxima_forecasts_checked_total",
    Kind.COUNTER,
    ("engine",),
    "Forecasts of KV block demand that were compared with what came.",
    "1",
)
FORECASTS_EXCEEDED = Metric(
    "proxima_forecasts_exceeded_total",
    Kind.COUNTER,
    ("engine",),
    "Those of them that demand was above; the policy aims at 3 % of the checked ones.",
    "1",
)
PLAN_TIME = Metric("proxima_plan_seconds_total", Kind.COUNTER, ("engine",), "Time spent planning steps.", "seconds")
POLICY_FAILURES = Metric(
    "proxima_policy_failures_total",
    Kind.COUNTER,
    ("engine",),
    "Plans that failed; their steps went by arrival order.",
    "1",
)
POLICY_STATE = Metric(
    "proxima_policy_state",
    Kind.GAUGE,
    ("engine", "state"),
    "1 for the state of the scheduling policy: ok, degraded (the last plan failed) or native (off until restart).",
    "1",
)

METRICS: tuple[Metric, ...] = (
    BUILD_INFO,
    ENGINE_PHASE,
    ENGINE_UP,
    SCHEDULER_INFO,
    HTTP_REQUESTS,
    HTTP_IN_FLIGHT,
    IGNORED_PARAMS,
    STREAM_ERRORS,
    SCHEDULER_STEPS,
    SCHEDULER_RUNNING,
    SCHEDULER_WAITING,
    BLOCKS_TOTAL,
    BLOCKS_USED,
    BLOCKS_PEAK,
    OUTPUT_RATE,
    DRAIN_RATE,
    ESTIMATED_START,
    BACKFILLS,
    YIELDS,
    PREEMPTIONS,
    FORECASTS_CHECKED,
    FORECASTS_EXCEEDED,
    PLAN_TIME,
    POLICY_FAILURES,
    POLICY_STATE,
)


def metrics_page() -> str:
    """docs/metrics.md."""
    rows = (
        f"| `{each.name}` | {each.kind} | {', '.join(f'`{label}`' for label in each.labels) or 'none'} "
        f"| {each.unit} | {each.help} |\n"
        for each in METRICS
    )
    return _PAGE_HEAD + "".join(rows)
