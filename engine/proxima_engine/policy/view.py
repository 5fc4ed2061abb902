"""What the policy sees: a frozen picture of queue and pool, without any engine object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from proxima_engine.policy.plan import Reason

SortKey = tuple[int, float, str]
"""(priority, arrival in seconds, request id): smaller goes first. Priority is 0 for all unless vLLM schedules by it."""


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    request_id: str
    key: SortKey
    blocks_at_most: int
    """Blocks it needs to start if no prefix of it is cached."""
    prompt_tokens: int
    output_tokens: int
    """Tokens that it has generated already: more than 0 after it gave up its blocks."""
    cap_tokens: int
    """Declared upper bound of its output; its true length is not known to any policy."""
    not_ready: Reason | None = None
    """Set when it waits for something other than blocks, which vLLM itself checks at dispatch."""

    @property
    def arrival_s(self) -> float:
        return self.key[1]


@dataclass(frozen=True, slots=True)
class RunningRequest:
    request_id: str
    key: SortKey
    blocks: int
    """Blocks it holds (shared prefix blocks counted in full)."""
    growth_blocks: int
    """Blocks it needs on top for the coming step."""
    started_s: float
    """Time of the first plan that saw it running."""
    prompt_tokens: int
    output_tokens: int
    """Tokens that it has generated so far."""
    cap_tokens: int
    """Declared upper bound of its output; its true length is not known to any policy."""

    @property
    def arrival_s(self) -> float:
        return self.key[1]

    @property
    def remaining_tokens(self) -> int:
        """Tokens until its declared cap."""
        return max(0, self.cap_tokens - self.output_tokens)


@dataclass(frozen=True, slots=True)
class StepView:
    now_s: float
    step_s: float
    """Measured duration of a step in seconds; 0 before the first measurement."""
    free_blocks: int
    """Free blocks, less the watermark that the KV manager keeps."""
    used_blocks: int
    blocks_total: int
    block_size: int
    """Tokens in a block."""
    slots: int
    """How many more requests may run."""
    running: Sequence[RunningRequest]
    waiting: Sequence[WaitingRequest]
    """In order of `key`. May be cut after a number of requests: the rest is not looked at in this step."""
    in_flight: bool
    """Whether the device still computes for some who run: it may end them, and their blocks are not free yet."""
    exact_blocks: Callable[[str], int]
    """Blocks a waiting request needs to start, cached prefix counted: the KV manager's own formula. Costs a lookup
    per block of the prompt, so ask only where the answer can change the decision."""
