"""A plan in the making: what is left of the pool and the batch, and what has been decided so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from proxima_engine.policy.demand import Demand
from proxima_engine.policy.plan import Reason
from proxima_engine.policy.urgency import Band
from proxima_engine.policy.view import RunningRequest, WaitingRequest

EXACT_LOOKUPS_PER_STEP = 8
"""How many prefix lookups a plan may spend. The requests that need one are those at the front that do not fit."""


@dataclass(slots=True)
class Draft:
    long_blocks: int
    """Of those of class long who run or were started in this draft."""
    adapters: set[int]
    """Of those who run or were started in this draft."""

    free_blocks: int
    slots: int
    running: int
    demand: Demand
    """Of all who run or were started in this draft."""
    lookups_left: int = EXACT_LOOKUPS_PER_STEP
    order: list[str] = field(default_factory=list)
    held: dict[str, Reason] = field(default_factory=dict)
    reserved: Demand | None = None
    tight: int = 0
    """The horizon at which the last one who was considered did not fit. The next one fails at the same, mostly."""
    head_start_steps: float | None = None
    looked_past_head: int = 0
    last_band: Band = Band.LATE
    """Nobody of a later band starts any more."""
    last_adapter_band: int = Band.LATE
    """Nobody of a later band who has an adapter starts any more."""
    backfilled: int = 0
    taken_blocks: int = 0
    yields: list[str] = field(default_factory=list)

    def start(self, request: WaitingRequest, blocks: int, demand: Demand) -> None:
        self.order.append(request.request_id)
        self.free_blocks -= blocks
        self.taken_blocks += blocks
        self.slots -= 1
        self.running += 1
        self.demand += demand
        if request.adapter:
            self.adapters.add(request.adapter)
        self.backfilled += self.reserved is not None

    def room(self) -> tuple[int, int, int, int, int]:
        """What changes when others yield."""
        return self.free_blocks, self.taken_blocks, self.slots, self.running, len(self.yields)

    def go_back_to(self, room: tuple[int, int, int, int, int]) -> None:
        self.free_blocks, self.taken_blocks, self.slots, self.running, yields = room
        del self.yields[yields:]

    def give_back(
        self, candidates: Sequence[RunningRequest], blocks: int, freed_blocks: Callable[[RunningRequest], int]
    ) -> bool:
        """Let as many of them yield as it takes, in their order; if all are not enough, none. ``freed_blocks``: how
        many there are more when that one yields."""
        free = self.free_blocks
        chosen: list[str] = []
        for candidate in candidates:
            if free >= blocks and self.slots + len(chosen) > 0:
                break
            if candidate.request_id not in self.yields:
                chosen.append(candidate.request_id)
                free += freed_blocks(candidate)
        if free < blocks or self.slots + len(chosen) <= 0:
            return False
        self.taken_blocks -= free - self.free_blocks
        self.free_blocks = free
        self.slots += len(chosen)
        self.running -= len(chosen)
        self.yields += chosen
        return True
