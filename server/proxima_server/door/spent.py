"""How many tokens a request has cost."""

from __future__ import annotations

from typing import NamedTuple

from proxima_server.door.visit import Visit
from proxima_server.observability.record import RequestRecord


class Spent(NamedTuple):
    prompt: int
    output: int
    counted: bool
    """By the engine, to the end of the answer; otherwise judged from what was seen."""


def spent_tokens(visit: Visit, record: RequestRecord) -> Spent:
    if record.prompt_tokens:
        return Spent(record.prompt_tokens, record.output_tokens, counted=visit.served)
    if visit.refused or not visit.granted.is_set():
        return Spent(0, 0, counted=False)
    # Ended before its first output was seen, but not before the engine had it.
    return Spent(visit.entry.prompt_tokens, 0, counted=False)
