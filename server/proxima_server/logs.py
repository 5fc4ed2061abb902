"""Logging of the gateway process; vLLM configures its own loggers, to the same level."""

from __future__ import annotations

import logging.config

_FORMAT = "%(levelname)s %(asctime)s [%(name)s] %(message)s"
_DATE_FORMAT = "%m-%d %H:%M:%S"

OUR_PACKAGES = ("proxima_server", "proxima_engine", "proxima_config", "proxima_kernels")


def configure(level: str) -> None:
    """One line per record on stderr, from `level` (debug, info, warning, error) up.

    Access logs cost more than they tell at thousands of streams, so they appear at debug level only; `/metrics`
    counts requests always. Two libraries log every chunk at debug level and stay at info.
    """
    ours = {"level": level.upper(), "handlers": ["stderr"], "propagate": False}
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"line": {"format": _FORMAT, "datefmt": _DATE_FORMAT}},
            "handlers": {
                "stderr": {
                    "class": "logging.StreamHandler",
                    "formatter": "line",
                    "stream": "ext://sys.stderr",
                }
            },
            "loggers": {
                **dict.fromkeys(OUR_PACKAGES, ours),
                "uvicorn": {**ours, "level": "INFO" if level == "debug" else "WARNING"},
                "sse_starlette": {**ours, "level": "INFO" if level == "debug" else level.upper()},
            },
        }
    )
