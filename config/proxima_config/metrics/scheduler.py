"""Metrics of the scheduler, from its snapshots."""

from __future__ import annotations

from proxima_config.metrics.metric import Kind, Metric

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
    "proxima_finished_requests_per_second",
    Kind.GAUGE,
    ("engine",),
    "Requests finished per second while there is work, smoothed.",
    "1/s",
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
HOST_BLOCKS_TOTAL = Metric(
    "proxima_host_kv_blocks",
    Kind.GAUGE,
    ("engine",),
    "KV blocks that host memory has room for; 0 without swap.enabled.",
    "blocks",
)
HOST_BLOCKS_USED = Metric(
    "proxima_host_kv_blocks_used",
    Kind.GAUGE,
    ("engine",),
    "Those of them that are held for requests which yielded and wait.",
    "blocks",
)
HOST_BLOCKS_KEPT = Metric(
    "proxima_host_kv_blocks_kept",
    Kind.GAUGE,
    ("engine",),
    "Those of them that hold text which a later request may begin with.",
    "blocks",
)
SWAPPED_BLOCKS = Metric(
    "proxima_swapped_blocks_total",
    Kind.COUNTER,
    ("engine", "direction"),
    "KV blocks copied to host memory (out) and back (in).",
    "blocks",
)
SWAPPED_BYTES = Metric(
    "proxima_swapped_bytes_total", Kind.COUNTER, ("engine", "direction"), "Bytes of them, of all ranks.", "bytes"
)
SWAP_TIME = Metric(
    "proxima_swap_seconds_total", Kind.COUNTER, ("engine",), "Time for which copies held the worker up.", "seconds"
)
SWAP_UNDER_WAY = Metric(
    "proxima_swap_under_way_seconds_total",
    Kind.COUNTER,
    ("engine",),
    "Time for which KV blocks were on their way between device and host. The share that overlaps with computing is "
    "1 - proxima_swap_seconds_total / this; on a CPU there is none.",
    "seconds",
)
SWAP_AHEAD = Metric(
    "proxima_swap_ahead_blocks_total",
    Kind.COUNTER,
    ("engine", "what"),
    "KV blocks that moved before they had to: stored before a request yielded, or fetched (on CUDA) before one "
    "resumed; and stored_used and fetched_used, those that were there when it did (the latter each time).",
    "blocks",
)
RECOMPUTED = Metric(
    "proxima_recomputed_tokens_total",
    Kind.COUNTER,
    ("engine",),
    "Tokens that were computed again, because their request had yielded or was preempted and its KV was lost.",
    "tokens",
)
RECOMPUTE_AVOIDED = Metric(
    "proxima_recompute_tokens_avoided_total",
    Kind.COUNTER,
    ("engine",),
    "Tokens of requests that resumed, which came back from host memory and were not computed again.",
    "tokens",
)
PREFIX_RESTORED = Metric(
    "proxima_prefix_tokens_restored_total",
    Kind.COUNTER,
    ("engine",),
    "Prompt tokens that came back from host memory, because an earlier request had the same beginning.",
    "tokens",
)
SWAP_FAILURES = Metric(
    "proxima_swap_failures_total",
    Kind.COUNTER,
    ("engine", "cause"),
    "Requests that yielded and compute again all the same: no_room on the host, or a copy that failed.",
    "requests",
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
