"""How log records become lines, in the gateway and in the processes of the engine: as text or as JSON.

A record may carry more than its message: `logger.info("...", extra={"fields": {"total_ms": 12}})`.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from typing import Any, Literal

from pythonjsonlogger.msgspec import MsgspecFormatter

Format = Literal["text", "json"]

NO_REQUEST = "-"
"""`request_id` of a record that is about none."""

_MOST_CHARS = 8_000
_TEXT = "%(levelname)s %(asctime)s [%(name)s] %(message)s"
_DATE = "%m-%d %H:%M:%S"
_PLAIN = re.compile(r"[\w.:/@%+-]+")


class BoundedRecord(logging.LogRecord):
    """A record whose message is bounded: those of other people's loggers may hold what a client has sent."""

    def getMessage(self) -> str:  # noqa: N802 - the name is logging's
        message = super().getMessage()
        more = len(message) - _MOST_CHARS
        return message if more <= 0 else f"{message[:_MOST_CHARS]}... and {more} characters more"


class TextLine(logging.Formatter):
    """The usual line, with the fields behind it as name=value."""

    def __init__(self) -> None:
        super().__init__(_TEXT, _DATE)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        shown = [super().formatMessage(record)]
        shown += [f"{name}={_plain(value)}" for name, value in _fields(record).items()]
        return " ".join(shown)


class JSONLine(MsgspecFormatter):
    """One JSON object per record: time (RFC 3339, UTC), level, logger, process, pid, message, error, and the fields."""

    def __init__(self) -> None:
        super().__init__(
            ["levelname", "name", "process", "message"],
            timestamp="time",
            rename_fields={
                "levelname": "level",
                "name": "logger",
                "process": "pid",
                "vllm_process_name": "process",
                "exc_info": "error",
            },
        )

    def add_fields(self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]) -> None:
        super().add_fields(log_data, record, message_dict)
        log_data.pop("request_id", None)
        log_data.pop("fields", None)
        log_data.update(_fields(record))


def logging_config(format_: Format, levels: Mapping[str, str], root: str | None = None) -> dict[str, Any]:
    """A configuration for `logging.config.dictConfig`: each logger of `levels` to stderr.

    With `root`, what other libraries log at that level goes the same way.
    """
    lines = {"text": TextLine, "json": JSONLine}[format_]
    config: dict[str, Any] = {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": f"{lines.__module__}.{lines.__qualname__}"}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line", "stream": "ext://sys.stderr"}},
        "loggers": {
            name: {"level": level.upper(), "handlers": ["stderr"], "propagate": False} for name, level in levels.items()
        },
    }
    if root is not None:
        config["root"] = {"level": root.upper(), "handlers": ["stderr"]}
    return config


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """What a record says beside its message: the request it is about, if any, and its own fields."""
    request_id = getattr(record, "request_id", NO_REQUEST)
    about: dict[str, object] = {} if request_id == NO_REQUEST else {"request_id": request_id}
    return {**about, **getattr(record, "fields", {})}


def _plain(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
