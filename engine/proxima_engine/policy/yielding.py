"""Who gives up its blocks when there are not enough for all who run.

The one whose loss costs least:

1. who has no token yet: nobody sees it stand still;
2. who has had its minimum service since it started or resumed: to yield again at once would be work for nothing;
3. who has missed its target anyway, before one whose answer has been fluent so far;
4. who started last, because it has the least to compute again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from proxima_engine.policy.view import RunningRequest

MINIMUM_SERVICE_TOKENS = 64
"""Tokens that a request may generate before it is asked to yield (again), as long as there is anybody else."""


@dataclass(frozen=True, slots=True)
class Candidate:
    request: RunningRequest
    is_late: bool
    """Its first token came after its target, or its answer has stood still already."""
    served_tokens: int
    """Generated since it started or resumed."""


def victims(candidates: Iterable[Candidate], missing_blocks: int) -> Sequence[RunningRequest]:
    """Those who yield, until the others have the blocks of this step. The last one never does: alone in the pool it has
    all there is."""
    ordered = sorted(candidates, key=_loss)
    chosen: list[RunningRequest] = []
    while missing_blocks > 0 and len(chosen) < len(ordered) - 1:
        victim = ordered[len(chosen)].request
        chosen.append(victim)
        missing_blocks -= victim.blocks + victim.growth_blocks
    return chosen


def _loss(candidate: Candidate) -> tuple[bool, bool, bool, float, str]:
    request = candidate.request
    streams = request.output_tokens > 0
    protected = streams and candidate.served_tokens < MINIMUM_SERVICE_TOKENS
    return streams, protected, not candidate.is_late, -request.started_s, request.request_id
