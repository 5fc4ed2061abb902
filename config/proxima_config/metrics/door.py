"""Metrics of the door: who waits there, who was refused, and the API keys."""

from __future__ import annotations

from proxima_config.metrics.metric import Kind, Metric

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
    "would have started, or been complete, after its deadline), or late (most with such a deadline have missed it "
    "lately).",
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
