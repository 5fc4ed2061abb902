"""The copies of --swap for CUDA over the memory of a stepped scheduler: a bus that does nothing before it has to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from fake_lanes import FakeLane

from proxima_engine.swap.block_movers import NO_BLOCK
from proxima_engine.swap.lanes import CopyTimes
from proxima_engine.swap.staged_copies import StagedCopies

if TYPE_CHECKING:
    from stepping_engine import PagedMemory

NOTHING = torch.iinfo(torch.int64).min
"""In a slot that nobody has written."""
PIECE_BLOCKS = [3, 3, 4, 4]
AHEAD_PIECES = 2


class SlotMover:
    """Rows of a piece are what the slots of a block hold."""

    def __init__(self, memory: PagedMemory, pieces: Sequence[torch.Tensor]) -> None:
        self._memory, self._pieces = memory, pieces

    def gather(self, piece: int, blocks: Sequence[int]) -> None:
        for row, block in enumerate(blocks):
            for offset in range(self._memory.block_size):
                held = self._memory.slots.get((block, offset))
                self._pieces[piece][row, offset] = NOTHING if held is None else held

    def scatter(self, piece: int, blocks: Sequence[int]) -> None:
        for row, block in enumerate(blocks):
            if block == NO_BLOCK:
                continue
            for offset, held in enumerate(self._pieces[piece][row].tolist()):
                self._memory.slots[block, offset] = None if held == NOTHING else held


class LaggingCopier:
    """The bus moves only when the forward pass cannot go on without it: whatever is wrong in the order shows."""

    bytes_per_block = 1

    def __init__(self, memory: PagedMemory, host_blocks: int, fails: Callable[[], bool]) -> None:
        clock = [0.0]
        self._compute, self._bus, self._fails = FakeLane(clock), FakeLane(clock), fails
        pieces = [torch.full((blocks, memory.block_size), NOTHING) for blocks in PIECE_BLOCKS]
        host = list(torch.full((host_blocks, memory.block_size), NOTHING))
        mover = SlotMover(memory, pieces)
        self._copies = StagedCopies(mover, pieces, AHEAD_PIECES, host, self._bus, self._compute)

    def store(self, device_blocks: Sequence[int], host_blocks: Sequence[int]) -> None:
        self._with_failures(lambda: self._copies.store(self._compute, device_blocks, host_blocks))

    def load(self, device_blocks: Sequence[int], host_blocks: Sequence[int]) -> int:
        return self._with_failures(lambda: self._copies.load(self._compute, device_blocks, host_blocks))

    def fetch_ahead(self, host_blocks: Sequence[int]) -> int:
        return self._copies.fetch_ahead(host_blocks)

    def take_times(self) -> CopyTimes:
        return CopyTimes(0.0, 0.0)

    def _with_failures(self, copy: Callable[[], Any]) -> Any:
        # What fails is queued all the same, or only in part.
        self._bus.fails_next = self._fails()
        try:
            return copy()
        finally:
            self._bus.fails_next = False
            while not self._compute.is_idle:
                if not self._compute.advance():
                    assert self._bus.advance(), "both lanes wait for each other"
