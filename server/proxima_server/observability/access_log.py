"""One line in the log for each request: what it was, how it ended, how long it took and how large it was."""

from __future__ import annotations

import logging
import time

from proxima_server.observability.record import RequestRecord

LOGGER = "proxima_server.access"

_logger = logging.getLogger(LOGGER)
# Asked every few seconds, by machines.
_PROBES = ("/health", "/metrics")


def write(record: RequestRecord) -> None:
    level = logging.DEBUG if record.path.startswith(_PROBES) else logging.INFO
    if _logger.isEnabledFor(level):
        _logger.log(level, "request ended", extra={"fields": _fields(record)})


def _fields(record: RequestRecord) -> dict[str, object]:
    """What is known; nothing is said about what did not happen."""
    engine = {
        "queue_ms": _ms(record.queue_s),
        "ttft_ms": _ms(record.ttft_s),
        "stall_ms": _ms(record.stall_s or None),
        "prompt_tokens": record.prompt_tokens or None,
        "cached_tokens": record.cached_tokens or None,
        "completion_tokens": record.output_tokens,
    }
    fields = {
        "method": record.method,
        "path": record.path,
        "status": record.status,
        "outcome": record.outcome.value,
        "error": record.error_code,
        "request_id": record.request_id,
        "trace_id": record.trace_id,
        "key": record.key_id,
        "model": record.model,
        "class": record.class_name if record.sent_s is not None else None,
        "total_ms": _ms(time.monotonic() - record.arrived_s),
        **(engine if record.sent_s is not None else {}),
        "bytes_in": record.bytes_in,
        "bytes_out": record.bytes_out,
        "prompt": record.prompt,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
