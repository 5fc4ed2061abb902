"""Every metric of our own that `/metrics` shows; docs, dashboards and alerts are generated from this table.

vLLM's own metrics (`vllm:*`) are passed on verbatim and are not listed here. Counters are named with the `_total` that
Prometheus shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

_PAGE_HEAD = """\
# Metrics

`GET /metrics` answers in Prometheus' text format. The series of the table are present from the first scrape on, before
the engine has loaded, except those marked *later*: they appear with the first event they count. vLLM's own metrics
(`vllm:*`, under vLLM's own names) join when the engine has loaded. The label `engine` is the data-parallel rank, as
with vLLM's metrics; `class` is the request's class, of which `default` is always shown. Metrics of GPUs have the names,
units and labels of NVIDIA's dcgm-exporter; they are read through NVML and absent where there is no GPU.

This page is generated from `config/proxima_config/metrics_catalogue.py` by `make docs`.

| name | type | labels | unit | meaning |
|---|---|---|---|---|
"""
_PAGE_BUCKETS = """
A histogram `name` shows `name_bucket` with the label `le`, `name_sum` and `name_count`. Upper bounds of the buckets:

| name | seconds |
|---|---|
"""


_LATENCY_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120)


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Metric:
    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    unit: str
    """Unit of the value, for people: "seconds", "blocks", "1" for plain counts and flags."""
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets; the last one, +Inf, is not listed."""
    on_demand: bool = False
    """Its series appear with the first event or device they count: there would be too many, or none, before."""


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
    on_demand=True,
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
REQUESTS = Metric(
    "proxima_requests_total",
    Kind.COUNTER,
    ("class", "outcome"),
    "Requests to the model that have ended: ok, refused (4xx), rejected (429 or 503), failed (an error of ours, also "
    "in the middle of a stream), aborted (the client left).",
    "requests",
    on_demand=True,
)
QUEUE_TIME = Metric(
    "proxima_queue_seconds",
    Kind.HISTOGRAM,
    ("class",),
    "Time from having read a request to the first step that computed it: at the door and in the engine's queue.",
    "seconds",
    buckets=_LATENCY_BUCKETS,
)
TTFT = Metric(
    "proxima_time_to_first_token_seconds",
    Kind.HISTOGRAM,
    ("class",),
    "Time from the arrival of a request at the gateway to its first token; where the answer is not streamed, to the "
    "moment the engine had it.",
    "seconds",
    buckets=_LATENCY_BUCKETS,
)
INTER_TOKEN = Metric(
    "proxima_inter_token_seconds",
    Kind.HISTOGRAM,
    ("class",),
    "Time between two outputs of one stream, as they come to the gateway.",
    "seconds",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5, 10, 30),
)
REQUEST_TIME = Metric(
    "proxima_request_seconds",
    Kind.HISTOGRAM,
    ("class",),
    "Time from the arrival of a request at the gateway to the last byte of its answer; of answers that are complete.",
    "seconds",
    buckets=(*_LATENCY_BUCKETS, 300, 600),
)
PROMPT_TOKENS = Metric(
    "proxima_prompt_tokens_total",
    Kind.COUNTER,
    ("class",),
    "Tokens of prompts that the engine has begun to answer.",
    "tokens",
)
CACHED_TOKENS = Metric(
    "proxima_cached_prompt_tokens_total",
    Kind.COUNTER,
    ("class",),
    "Those of them that were in the prefix cache.",
    "tokens",
)
OUTPUT_TOKENS = Metric(
    "proxima_output_tokens_total", Kind.COUNTER, ("class",), "Tokens that the engine has generated.", "tokens"
)
KEY_REQUESTS = Metric(
    "proxima_key_requests_total",
    Kind.COUNTER,
    ("key", "outcome"),
    "As proxima_requests_total, by API key; after 200 keys the others share the name other.",
    "requests",
    on_demand=True,
)
KEY_TOKENS = Metric(
    "proxima_key_tokens_total",
    Kind.COUNTER,
    ("key", "kind"),
    "Tokens by API key: prompt or output.",
    "tokens",
    on_demand=True,
)
TASKS = Metric(
    "proxima_event_loop_tasks",
    Kind.GAUGE,
    (),
    "Tasks on the gateway's event loop; they come and go with requests.",
    "1",
)
DRAINING = Metric(
    "proxima_draining", Kind.GAUGE, (), "1 from SIGTERM or POST /admin/drain on: new requests are refused.", "1"
)
REQUESTS_REMAINING = Metric(
    "proxima_drain_remaining_requests",
    Kind.GAUGE,
    (),
    "Requests, waiting or running, for which a drain waits (or would). Probes, scrapes and /admin are not among them.",
    "requests",
)
DRAIN_SECONDS = Metric(
    "proxima_drain_remaining_seconds",
    Kind.GAUGE,
    (),
    "Time these have until the rest is ended with an error; lifecycle.drain_s while nobody drains.",
    "seconds",
)
ENGINE_RESTARTS = Metric(
    "proxima_engine_restarts_total", Kind.COUNTER, (), "Engines started again after one died or hung.", "1"
)
ENGINE_STALLED = Metric(
    "proxima_engine_stalled_seconds",
    Kind.GAUGE,
    (),
    "How long the engine has had requests and made no step; from lifecycle.hang_s on it counts as hung.",
    "seconds",
)
DOOR_WAITING = Metric(
    "proxima_door_waiting_requests",
    Kind.GAUGE,
    ("class",),
    "Requests that wait at the door for the turn of their key; those in the engine are proxima_scheduler_waiting.",
    "requests",
)
DOOR_WAITING_TOKENS = Metric(
    "proxima_door_waiting_prompt_tokens", Kind.GAUGE, ("class",), "Their prompt tokens, estimated.", "tokens"
)
DOOR_OLDEST_WAIT = Metric(
    "proxima_door_oldest_wait_seconds", Kind.GAUGE, ("class",), "Age of the oldest of them; 0 if none waits.", "seconds"
)
REJECTIONS = Metric(
    "proxima_rejections_total",
    Kind.COUNTER,
    ("reason",),
    "Requests that the door refused: key (none, or not a valid one), model (not for this key), a limit of the key "
    "(requests_per_min, tokens_per_min, concurrent), a full queue (queue_requests, queue_tokens), forecast (it "
    "would have started after its deadline), or late (most with such a deadline have missed it lately).",
    "requests",
)
DEADLINES_EXPIRED = Metric(
    "proxima_deadlines_expired_total",
    Kind.COUNTER,
    ("deadline",),
    "Requests that were aborted because a deadline had passed: queue, first_token or total.",
    "requests",
)
API_KEYS = Metric("proxima_api_keys", Kind.GAUGE, (), "API keys that are valid; 0 also where none is needed.", "1")
API_KEYS_RELOADS_FAILED = Metric(
    "proxima_api_keys_reloads_failed_total",
    Kind.COUNTER,
    (),
    "Changes of the keys file that were not valid; the keys of before stayed.",
    "1",
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
SCHEDULER_WAITING_TOKENS = Metric(
    "proxima_scheduler_waiting_tokens",
    Kind.GAUGE,
    ("engine", "class"),
    "Tokens of those who wait: of their prompts, and of what was generated before they gave their blocks up.",
    "tokens",
)
SCHEDULER_OLDEST_WAIT = Metric(
    "proxima_scheduler_oldest_wait_seconds",
    Kind.GAUGE,
    ("engine", "class"),
    "Age of the oldest request that has not started; 0 if none waits.",
    "seconds",
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

_GPU_LABELS = ("gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname")
GPU_UTIL = Metric("DCGM_FI_DEV_GPU_UTIL", Kind.GAUGE, _GPU_LABELS, "GPU utilization (in %).", "percent", on_demand=True)
GPU_FB_USED = Metric(
    "DCGM_FI_DEV_FB_USED", Kind.GAUGE, _GPU_LABELS, "Framebuffer memory used (in MiB).", "MiB", on_demand=True
)
GPU_FB_FREE = Metric(
    "DCGM_FI_DEV_FB_FREE", Kind.GAUGE, _GPU_LABELS, "Framebuffer memory free (in MiB).", "MiB", on_demand=True
)
GPU_POWER = Metric("DCGM_FI_DEV_POWER_USAGE", Kind.GAUGE, _GPU_LABELS, "Power draw (in W).", "W", on_demand=True)
GPU_TEMP = Metric("DCGM_FI_DEV_GPU_TEMP", Kind.GAUGE, _GPU_LABELS, "GPU temperature (in C).", "°C", on_demand=True)
GPU_SM_CLOCK = Metric(
    "DCGM_FI_DEV_SM_CLOCK", Kind.GAUGE, _GPU_LABELS, "SM clock frequency (in MHz).", "MHz", on_demand=True
)
GPU_XID = Metric(
    "DCGM_FI_DEV_XID_ERRORS",
    Kind.GAUGE,
    _GPU_LABELS,
    "Value of the last XID error encountered, since the gateway started; 0 for none.",
    "1",
    on_demand=True,
)

METRICS: tuple[Metric, ...] = tuple(each for each in globals().values() if isinstance(each, Metric))
"""All of the above, in this order."""


def metrics_page() -> str:
    """docs/metrics.md."""
    return _PAGE_HEAD + "".join(map(_row, METRICS)) + _PAGE_BUCKETS + "".join(map(_buckets, METRICS))


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels) or "none"
    later = " *(later)*" if metric.on_demand else ""
    return f"| `{metric.name}`{later} | {metric.kind} | {labels} | {metric.unit} | {metric.help} |\n"


def _buckets(metric: Metric) -> str:
    if metric.kind is not Kind.HISTOGRAM:
        return ""
    return f"| `{metric.name}` | {', '.join(map(str, metric.buckets))} |\n"
