"""Logging of the gateway process; vLLM configures its own loggers, to the same level (`proxima_engine.launch`)."""

from __future__ import annotations

import logging.config

from proxima_config.log_lines import BoundedRecord, logging_config
from proxima_config.settings import LoggingSettings
from proxima_server.observability.access_log import LOGGER as ACCESS_LOGGER
from proxima_server.request_id import AddRequestId

OUR_PACKAGES = ("proxima_server", "proxima_engine", "proxima_config", "proxima_kernels")


def configure(settings: LoggingSettings) -> None:
    """One line per record on stderr.

    Two libraries say too much: one logs each chunk at debug level, the other each start and stop at info level.
    In JSON, warnings of other libraries become lines too, for a collector can do nothing with loose text.
    """
    levels = dict.fromkeys(OUR_PACKAGES, settings.level)
    levels["uvicorn"] = "info" if settings.level == "debug" else "warning"
    levels["sse_starlette"] = "info" if settings.level == "debug" else settings.level
    if not settings.access:
        levels[ACCESS_LOGGER] = "warning"
    as_json = settings.format == "json"
    config = logging_config(settings.format, levels, root="warning" if as_json else None)
    config["filters"] = {"request": {"()": AddRequestId}}
    config["handlers"]["stderr"]["filters"] = ["request"]
    logging.config.dictConfig(config)
    logging.setLogRecordFactory(BoundedRecord)
    logging.captureWarnings(as_json)
