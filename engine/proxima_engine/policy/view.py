"""What the policy sees: a frozen picture of queue and pool, without any engine object."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from proxima_config.hints import RequestClass
from proxima_engine.policy.pace import StepTime
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
    ttft_s: float
    """Seconds from arrival to its first token that it is promised."""
    not_ready: Reason | None = None
    """Set when it waits for something other than blocks, which vLLM itself checks at dispatch."""
    request_class: RequestClass = RequestClass.DEFAULT
    total_s: float = math.inf
    """Seconds from arrival to its last token that it is promised."""
    adapter: int = 0
    """Its LoRA adapter; 0 for none."""

    @property
    def priority(self) -> int:
        return self.key[0]

    @property
    def arrival_s(self) -> float:
        return self.key[1]

    @property
    def deadline_s(self) -> float:
        """When its first token has to come."""
        return self.key[1] + self.ttft_s


class RunningRequest(NamedTuple):
    """A tuple, because hundreds are listed at once and a frozen dataclass takes twice as long to make."""

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
    def priority(self) -> int:
        return self.key[0]

    @property
    def arrival_s(self) -> float:
        return self.key[1]

    @property
    def remaining_tokens(self) -> int:
        """Tokens until its declared cap."""
        return max(0, self.cap_tokens - self.output_tokens)


@dataclass(frozen=True, slots=True)
class StartedRequest:
    """One who runs since the last plan, by its plan or without one."""

    request: WaitingRequest
    """As it waited, at the time it started."""
    shared_blocks: int
    """Blocks of it that others hold too."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What happened since the last plan."""

    restart: bool = False
    """Whatever was known before is void: all who wait and run are told anew."""
    arrived: Sequence[WaitingRequest] = ()
    """They wait since, or wait in a new way. Those who yielded are among them."""
    left: Sequence[str] = ()
    """They wait no more."""
    started: Sequence[StartedRequest] = ()
    stopped: Sequence[str] = ()
    """They run no more: ended, aborted or yielded."""

    @property
    def is_empty(self) -> bool:
        return not (self.restart or self.arrived or self.left or self.started or self.stopped)


@dataclass(frozen=True)
class StepView:
    now_s: float
    step_s: float
    """Measured duration of a step in seconds; 0 before the first measurement."""
    free_blocks: int
    """Free blocks, less the watermark that the KV manager keeps."""
    used_blocks: int
    blocks_total: int
    block_size: float
    """Tokens of a request for which it takes one block more. A part of what fits into a block where each token takes a
    place in several, one for each KV-cache group of a hybrid model."""
    slots: int
    """How many more requests may run."""
    in_flight: bool
    """Whether the device still computes for some who run: it may end them, and their blocks are not free yet."""
    growth_blocks: int
    """Blocks that all who run need on top for the coming step."""
    exact_blocks: Callable[[str], int]
    """Blocks a waiting request needs to start, cached prefix counted: the KV manager's own formula. Costs a lookup
    per block of the prompt, so ask only where the answer can change the decision."""
    shared_blocks: Callable[[str], int]
    """Of the blocks that a running request holds those that others hold too. Costs a look at each of its blocks, so ask
    only for those who may yield."""
    list_running: Callable[[], Sequence[RunningRequest]]
    list_waiting: Callable[[], Sequence[WaitingRequest]]
    changes: Changes = field(default_factory=Changes)
    step_time: StepTime = field(default_factory=StepTime)
    """What steps have taken."""
    swap_token_s: float | None = None
    """Seconds of the device for each token of who yields, if its KV is moved away and back; None where it is lost."""
    adapters: frozenset[int] = frozenset()
    """LoRA adapters of those who run."""
    adapter_slots: float = math.inf
    """How many of them a batch may have."""
    denied: str | None = None
    """A waiting request whose allocation vLLM refused in the last step although it was planned."""

    @cached_property
    def running(self) -> Sequence[RunningRequest]:
        """In vLLM's order. Made when asked for: with hundreds of them it costs more than the rest of a plan."""
        return self.list_running()

    @cached_property
    def waiting(self) -> Sequence[WaitingRequest]:
        """In order of `key`. Made when asked for."""
        return self.list_waiting()

    def freed_blocks(self, request: RunningRequest) -> int:
        """Blocks that the others have more when one who runs yields: those that nobody else holds, and those that it
        would have taken."""
        return max(0, request.blocks - self.shared_blocks(request.request_id)) + request.growth_blocks

    @property
    def missing_blocks(self) -> int:
        """Blocks that those who run need in this step beyond those that are free."""
        return max(0, self.growth_blocks - (self.blocks_total - self.used_blocks))
