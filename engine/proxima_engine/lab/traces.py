"""Recorded traffic: a CSV file, cut, sped up, scaled, and its coarse ticks spread out.

    arrival_s,input_tokens,output_tokens[,prefix_hash_ids][,class][,tenant]

Further columns are left alone. Hash ids are whole numbers with spaces between them, at most one for each
``PREFIX_BLOCK_TOKENS`` of the prompt. The name of a shipped trace may stand for a path.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from proxima_config.errors import UsageError
from proxima_config.traces import text_of
from proxima_engine.lab.requests import DEFAULT_CAP_TOKENS, PREFIX_BLOCK_TOKENS, LabRequest, Workload

_REQUIRED = ("arrival_s", "input_tokens", "output_tokens")
_SURPLUS = "more fields"
_LEAST_SCALE, _MOST_SCALE = 0.001, 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What becomes of the recorded traffic. Raises UsageError that names what is out of bounds."""

    skip: int = 0
    """So many requests, the first to arrive, are left out."""
    limit: int | None = None
    """Only so many requests, the first to arrive after those; None for all."""
    rate_scale: float = 1.0
    """How many times as many requests arrive per second."""
    input_scale: float = 1.0
    output_scale: float = 1.0
    jitter_s: float = 0.0
    """Length of the recorder's tick: each arrival moves to a random point of the tick that it begins. In recorded time,
    before ``rate_scale``."""
    cap_tokens: int = DEFAULT_CAP_TOKENS
    """Declared `max_tokens` of every request. An answer that was longer ends there, as a server would end it."""
    seed: int = 0
    """Fixes the jitter."""

    def __post_init__(self) -> None:
        for name in ("rate_scale", "input_scale", "output_scale"):
            value = getattr(self, name)
            if not _LEAST_SCALE <= value <= _MOST_SCALE:
                raise UsageError(f"{_flag(name)}: {value!r} must be a number from {_LEAST_SCALE:g} to {_MOST_SCALE:g}")
        if not 0 <= self.jitter_s < math.inf:
            raise UsageError(f"--jitter-s: {self.jitter_s!r} must be 0 s or more")
        if self.skip < 0:
            raise UsageError(f"--skip: {self.skip!r} must be a whole number from 0 up")
        for name in ("limit", "cap_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{_flag(name)}: {value!r} must be a whole number from 1 up")


def _flag(name: str) -> str:
    """What people call a change."""
    return "--max-tokens" if name == "cap_tokens" else f"--{name.replace('_', '-')}"


def read(path: Path, changes: Changes | None = None) -> Workload:
    """The requests of a trace in order of arrival, the first tick at 0 s; the same for the same file and changes.

    Raises UsageError that names the line and the rule that it breaks.
    """
    changes = changes or Changes()
    recorded = sorted(_rows(path), key=lambda request: request.arrival_s)[changes.skip :][: changes.limit]
    if not recorded:
        raise UsageError(f"{path}: has no requests" + (f" after the first {changes.skip}" if changes.skip else ""))
    start_s = recorded[0].arrival_s
    rng = random.Random(f"{changes.seed}/jitter")
    changed = [_changed(request, start_s, changes, rng) for request in recorded]
    return Workload(path.stem, tuple(sorted(changed, key=lambda request: request.arrival_s)))


def _changed(request: LabRequest, start_s: float, changes: Changes, rng: random.Random) -> LabRequest:
    since_start_s = request.arrival_s - start_s + changes.jitter_s * rng.random()
    return replace(
        request,
        arrival_s=since_start_s / changes.rate_scale,
        input_tokens=_scaled(request.input_tokens, changes.input_scale),
        output_tokens=min(_scaled(request.output_tokens, changes.output_scale), changes.cap_tokens),
        cap_tokens=changes.cap_tokens,
        prefix_hash_ids=_scaled_ids(request, changes.input_scale),
    )


def _scaled(tokens: int, scale: float) -> int:
    return max(1, round(tokens * scale))


def _scaled_ids(request: LabRequest, scale: float) -> tuple[int, ...]:
    """Ids for the scaled prompt, which shares the same part of itself as before.

    Each block of the scaled prompt takes the id of the recorded block that its last token comes from: prompts that were
    equal that far still are, and those that were not still are not.
    """
    ids = request.prefix_hash_ids
    if scale == 1:
        return ids
    ends = (number * PREFIX_BLOCK_TOKENS for number in range(1, _blocks(_scaled(request.input_tokens, scale)) + 1))
    # By the scale itself and not by the rounded lengths, so that all prompts are cut at the same places.
    sources = (_blocks(min(math.ceil(end / scale), request.input_tokens)) - 1 for end in ends)
    return tuple(ids[source] for source in sources if source < len(ids))


def _blocks(tokens: int) -> int:
    return math.ceil(tokens / PREFIX_BLOCK_TOKENS)


def _rows(path: Path) -> Iterator[LabRequest]:
    """The requests as recorded, in the file's order."""
    rows = csv.DictReader(text_of(path).splitlines(), restkey=_SURPLUS, restval="")
    if missing := [column for column in _REQUIRED if column not in (rows.fieldnames or ())]:
        raise UsageError(f"{path}:1: column {missing[0]} is missing; a trace begins with {','.join(_REQUIRED)}")
    try:
        for index, row in enumerate(rows):
            yield _request(index, row)
    except (ValueError, csv.Error) as error:
        raise UsageError(f"{path}:{rows.line_num}: {error}") from error


def _request(index: int, row: Mapping[str, str]) -> LabRequest:
    """Raises ValueError that says which rule the row breaks."""
    if _SURPLUS in row:
        raise ValueError("more fields than the first line has columns")
    input_tokens = _count(row, "input_tokens")
    output_tokens = _count(row, "output_tokens")
    return LabRequest(
        request_id=str(index),
        arrival_s=_arrival_s(row["arrival_s"]),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cap_tokens=output_tokens,
        prefix_hash_ids=_hash_ids(row.get("prefix_hash_ids", ""), input_tokens),
        request_class=row.get("class", ""),
        tenant=row.get("tenant", ""),
    )


def _arrival_s(text: str) -> float:
    try:
        arrival_s = float(text)
    except ValueError:
        arrival_s = math.nan
    if not math.isfinite(arrival_s):
        raise ValueError(f"arrival_s must be a number of seconds, not {text!r}")
    return arrival_s


def _count(row: Mapping[str, str], column: str) -> int:
    text = row[column].strip()
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ValueError(f"{column} must be a whole number from 1 up, not {row[column]!r}")
    return int(text)


def _hash_ids(text: str, input_tokens: int) -> tuple[int, ...]:
    if not all(each.isascii() and each.isdigit() for each in text.split()):
        raise ValueError(f"prefix_hash_ids must be whole numbers from 0 up with spaces between them, not {text!r}")
    ids = tuple(int(each) for each in text.split())
    if len(ids) > _blocks(input_tokens):
        raise ValueError(
            f"prefix_hash_ids must be at most one for each {PREFIX_BLOCK_TOKENS} tokens of the prompt, "
            f"{_blocks(input_tokens)} for {input_tokens} tokens, not {len(ids)}"
        )
    return ids
