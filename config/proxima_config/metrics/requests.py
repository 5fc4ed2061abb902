"""Metrics of requests: how many, how they ended, how long they took."""

from __future__ import annotations

from proxima_config.metrics.metric import Kind, Metric

_LATENCY_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120)

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
    "in the middle of a stream), aborted (the client left, or its own deadline passed).",
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
