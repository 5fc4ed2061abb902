"""How values of made-up traffic are written: each key's reader, which refuses what is out of bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from proxima_config import token_counts
from proxima_engine.lab.requests import PREFIX_BLOCK_TOKENS

Reader = Callable[[str], Any]
"""Raises ValueError that says what is possible."""


def key_of(field: str) -> str:
    """``long_tokens`` is written `long`, ``rate_rps`` is `rate` and ``pool_share`` is `pool-share`."""
    return field.removesuffix("_tokens").removesuffix("_rps").replace("_", "-")


def _whole(least: int, multiple_of: int = 1) -> Reader:
    step = f" that {multiple_of} divides" if multiple_of > 1 else ""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and int(text) >= least and int(text) % multiple_of == 0):
            raise ValueError(f"{text!r} must be a whole number from {least} up{step}")
        return int(text)

    return read


def _number(least: float, most: float) -> Reader:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise ValueError(f"{text!r} must be a number from {least:g} to {most:g}")
        return value

    return read


READERS: Mapping[str, Reader] = MappingProxyType(
    {
        "requests": _whole(1),
        "input_tokens": token_counts.parse,
        "output_tokens": token_counts.parse,
        "cap_tokens": _whole(1),
        "seed": _whole(0),
        "rate_rps": _number(0.0001, 10_000),
        "burstiness": _number(0.01, 100),
        "concurrency": _whole(1),
        "long_tokens": token_counts.parse,
        "long_share": _number(0, 1),
        "prefixes": _whole(1),
        "prefix_tokens": _whole(PREFIX_BLOCK_TOKENS, multiple_of=PREFIX_BLOCK_TOKENS),
        "pool_tokens": _whole(1),
        "pool_share": _number(0.01, 0.95),
        "growth": _number(0.01, 100),
    }
)
"""By the field that they fill."""
