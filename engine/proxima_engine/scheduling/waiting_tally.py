"""Who waits, counted by class in one pass: thousands may wait, and each snapshot asks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from proxima_config.hints import RequestClass
from proxima_engine.policy.view import WaitingRequest


@dataclass(slots=True)
class ClassTally:
    requests: int = 0
    tokens: int = 0
    """That have to be computed: of prompts, and of what had been generated."""
    first_arrival_s: float = math.inf
    """Of those who have not started."""
    urgent: int = 0
    """Who have yielded or have waited for the age bound: they go before all others."""
    late: int = 0
    """Of the others, who have missed the target for their first token."""


def tally(waiting: Iterable[WaitingRequest], now_s: float, max_wait_s: float) -> Mapping[RequestClass, ClassTally]:
    """Of each class of which anybody waits."""
    by_class: dict[RequestClass, ClassTally] = {}
    for request in waiting:
        found = by_class.get(request.request_class)
        if found is None:
            found = by_class[request.request_class] = ClassTally()
        found.requests += 1
        found.tokens += request.prompt_tokens + request.output_tokens
        if request.output_tokens:
            found.urgent += 1
            continue
        arrival_s = request.key[1]
        if arrival_s < found.first_arrival_s:
            found.first_arrival_s = arrival_s
        if now_s - arrival_s >= max_wait_s:
            found.urgent += 1
        elif now_s - arrival_s > request.ttft_s:
            found.late += 1
    return by_class
