"""Bounds on repetition counts in the schemas and patterns that clients send.

vLLM checks a schema by building its grammar in this process, and a grammar's size follows the counts in it:
`minItems: 1000000000` takes all memory of the machine within seconds, and everybody's requests with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from proxima_server.errors import APIError, ErrorCode

MAX_REPETITIONS = 100_000
"""More than any context holds; a grammar with such a count takes about ten megabytes."""

_SHOWN_PATH_CHARS = 200
_SCHEMA_FIELDS = ("response_format", "structured_outputs", "tools")
_COUNTS = frozenset(
    {
        *("minItems", "maxItems", "minLength", "maxLength"),
        *("minProperties", "maxProperties", "minContains", "maxContains"),
    }
)
_PATTERNS = frozenset({"pattern", "regex"})
_REPEAT = re.compile(r"\{(\d+)(?:,(\d*))?\}")


def check_repetitions(body: Mapping[str, Any]) -> None:
    """Raises APIError naming the first count in a schema of `body` that is above MAX_REPETITIONS."""
    for path, count in _counts(body):
        if count > MAX_REPETITIONS:
            name = path[:_SHOWN_PATH_CHARS]
            raise APIError(
                ErrorCode.INVALID_VALUE, f"Invalid '{name}': more than {MAX_REPETITIONS} repetitions", param=name
            )


def _counts(body: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    pending: list[tuple[str, Any]] = [(name, body[name]) for name in _SCHEMA_FIELDS if name in body]
    while pending:
        path, value = pending.pop()
        if isinstance(value, Mapping):
            for key, inner in value.items():
                inside = f"{path}.{key}"
                if key in _COUNTS and isinstance(inner, int | float):
                    yield inside, int(inner) if abs(inner) < float("inf") else MAX_REPETITIONS + 1
                elif key in _PATTERNS and isinstance(inner, str):
                    yield from ((inside, number) for number in _repeats(inner))
                else:
                    pending.append((inside, inner))
        elif isinstance(value, list):
            pending += [(f"{path}[{index}]", inner) for index, inner in enumerate(value)]


def _repeats(pattern: str) -> Iterator[int]:
    """The larger count of each `{n}`, `{n,}` and `{n,m}`; a number of absurd length counts as too large."""
    for low, high in _REPEAT.findall(pattern):
        yield max(int(digits) if len(digits) < 10 else MAX_REPETITIONS + 1 for digits in (low, high or low))
