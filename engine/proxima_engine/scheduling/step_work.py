"""What a step computes, in the units that its time depends on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput


@dataclass(frozen=True, slots=True)
class StepWork:
    tokens: int
    """New tokens over all sequences, prompts and outputs."""
    sequences: int
    context_tokens: int
    """Cached tokens that attention reads, over all sequences."""
    attention_pairs: int
    """(new token, token it attends to), over all sequences."""


def first_positions(output: SchedulerOutput) -> dict[str, int]:
    """Position at which each request's new tokens begin."""
    cached = output.scheduled_cached_reqs
    positions = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    for new in output.scheduled_new_reqs:
        positions[new.req_id] = new.num_computed_tokens
    return positions


def step_work(output: SchedulerOutput) -> StepWork:
    context = pairs = 0
    positions = first_positions(output)
    for request_id, count in output.num_scheduled_tokens.items():
        start = positions[request_id]
        context += start
        pairs += count * start + count * (count + 1) // 2
    return StepWork(output.total_num_scheduled_tokens, len(output.num_scheduled_tokens), context, pairs)
