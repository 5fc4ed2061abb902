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
_TOKENS = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()]|\{(?P<low>\d+)(?:,(?P<high>\d*))?\}|[^\\()\[{]+|.", re.DOTALL
)
"""Of a regular expression: an escape, a set of characters, a bracket, a count, or anything else."""


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
    """How often each `{n}`, `{n,}` and `{n,m}` repeats its atom, with the repeats inside of it: nested counts multiply.

    A number of absurd length counts as too large, and so does what it is multiplied with.
    """
    groups = [1]
    """The largest product inside of each open group so far."""
    atom = 1
    """The product of what a count that comes next would repeat."""
    for token in _TOKENS.finditer(pattern):
        text = token.group()
        if text == "(":
            groups.append(1)
        elif text == ")":
            atom = groups.pop() if len(groups) > 1 else 1
            groups[-1] = max(groups[-1], atom)
        elif text[0] == "{":
            digits = (token["low"], token["high"] or token["low"])
            count = max(int(each) if len(each) < 10 else MAX_REPETITIONS + 1 for each in digits)
            atom = min(atom * max(count, 1), MAX_REPETITIONS + 1)
            groups[-1] = max(groups[-1], atom)
            yield atom
        else:
            atom = 1
