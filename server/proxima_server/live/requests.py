"""One row for each request that is being answered or waits for it. Without its prompt, and without its key."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from proxima_engine.telemetry import Phase, RequestState
from proxima_server.observability.record import RequestRecord

ROWS = 300
"""Rows that a document has at most: the oldest requests."""
_URGENT = (Phase.SWAPPED, Phase.YIELDED, Phase.BLOCKED, Phase.WAITING, Phase.DECODE, Phase.PREFILL)
"""The phase of a request with several sequences is the first of these that one of them is in."""


def rows(
    records: Iterable[RequestRecord], states: Mapping[int, Iterable[RequestState]], ttft_s: float, *, told: bool
) -> tuple[list[dict[str, Any]], int]:
    """Oldest first, and how many were left out. ``states``: by rank; ``told``: whether the scheduler tells of any.
    ``ttft_s``: by when the first token should come where a request has no deadline for it."""
    now_s = time.monotonic()
    found: dict[str, list[tuple[int, RequestState]]] = {}
    for rank, of_rank in states.items():
        for state in of_rank:
            found.setdefault(external_id(state.request_id), []).append((rank, state))
    ordered = sorted(records, key=lambda record: record.arrived_s)
    return [
        _row(record, [held for each in record.engine_ids for held in found.get(each, ())], now_s, ttft_s, told=told)
        for record in ordered[:ROWS]
    ], max(0, len(ordered) - ROWS)


def external_id(engine_id: str) -> str:
    """The id under which the gateway handed a request to the engine, which adds a random end to it, and a number before
    it where the request asked for several answers."""
    given = engine_id.rpartition("-")[0]
    number, underscore, rest = given.partition("_")
    return rest if underscore and number.isdigit() else given


def _row(
    record: RequestRecord, ranked: list[tuple[int, RequestState]], now_s: float, ttft_s: float, *, told: bool
) -> dict[str, Any]:
    states = [state for _, state in ranked]
    by_rank = Counter[int]()
    for rank, state in ranked:
        by_rank[rank] += state.blocks
    age_s = now_s - record.arrived_s
    phase = _phase(record, states, told=told)
    waiting = [state for state in states if state.reason]
    output_tokens = max(record.output_tokens, sum(state.output_tokens for state in states))
    starts_s = [state.start_s for state in waiting if state.start_s is not None]
    return {
        "id": record.request_id,
        "class": record.class_name,
        "phase": phase.value,
        "reason": waiting[0].reason if waiting else None,
        "age_s": round(age_s, 2),
        "prompt_tokens": record.prompt_tokens or sum(state.prompt_tokens for state in states),
        "output_tokens": output_tokens,
        "blocks": by_rank.total(),
        "blocks_by_rank": by_rank,
        "slack_s": _slack_s(record, output_tokens, age_s, ttft_s),
        "start_s": round(min(starts_s), 2) if starts_s else None,
    }


def _phase(record: RequestRecord, states: list[RequestState], *, told: bool) -> Phase:
    if record.sent_s is None:
        return Phase.DOOR
    phases = {state.phase for state in states}
    for phase in _URGENT:
        if phase in phases:
            return phase
    if record.output_tokens:
        return Phase.DECODE
    # It has come since the scheduler last told; or nobody tells.
    return Phase.WAITING if told else Phase.ENGINE


def _slack_s(record: RequestRecord, output_tokens: int, age_s: float, ttft_s: float) -> float | None:
    """Seconds until the next of its deadlines passes, below 0 when it has; None for none."""
    total_s = record.done_within_s
    # Not the record's own count: it has none before an answer in one piece is whole.
    if output_tokens:
        return None if total_s is None else round(total_s - age_s, 2)
    first_s = ttft_s if record.first_token_within_s is None else record.first_token_within_s
    return round(min(first_s, first_s if total_s is None else total_s) - age_s, 2)
