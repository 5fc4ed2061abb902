"""Metrics of the gateway as a process: what it runs, its phase, its drain."""

from __future__ import annotations

from proxima_config.metrics.metric import Kind, Metric

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
