"""Host blocks that have crossed the bus before anybody asked for them, in device memory of their own.

Who resumes next is known while it waits. What lies here when it does is only scattered; all else goes the normal way,
so nothing depends on what is here. A host block changes by nothing but a store, and what is here of it is forgotten
when that store is queued. The bus is one lane, so what was fetched before it is what was there before it.

Pieces are filled one after the other, and the oldest is given to the next fetch, whomever it was for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import torch

from proxima_engine.swap.block_movers import NO_BLOCK, BlockMover
from proxima_engine.swap.lanes import Lane, Mark


class FetchedAhead:
    def __init__(
        self,
        mover: BlockMover,
        pieces: Sequence[torch.Tensor],
        first: int,
        host: Sequence[torch.Tensor],
        bus: Lane,
        compute: Lane,
    ) -> None:
        """`pieces`: (blocks, bytes) each, all of `mover`; those from `first` on are for this. `host`: a row of bytes
        for each host block."""
        self._mover, self._pieces, self._host, self._bus = mover, pieces, host, bus
        self._oldest_first = list(range(first, len(pieces)))
        self._filled: dict[int, Mark] = dict.fromkeys(self._oldest_first, compute.mark())
        """Piece -> when what was fetched last is there."""
        # The memory of the pieces may be in use by what was queued before they were made.
        self._last_reads: dict[int, Mark] = dict(self._filled)
        self._places: dict[int, tuple[int, int]] = {}
        """Host block -> piece and row."""

    def fetch(self, host_blocks: Iterable[int]) -> int:
        """Queue the way over the bus for those that are not here, as many as there is room for; returns how many."""
        missing = [block for block in dict.fromkeys(host_blocks) if block not in self._places]
        fetched = 0
        for _ in range(len(self._oldest_first)):
            if fetched == len(missing):
                break
            piece = self._oldest_first.pop(0)
            self._oldest_first.append(piece)
            part = missing[fetched : fetched + len(self._pieces[piece])]
            self._fill(piece, part)
            fetched += len(part)
        return fetched

    def forget(self, host_blocks: Iterable[int]) -> None:
        """They are written by what is queued next."""
        for block in host_blocks:
            self._places.pop(block, None)

    def scatter(
        self, compute: Lane, device_blocks: Sequence[int], host_blocks: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """Queue the way into the cache for those that are here; returns device and host blocks of the others."""
        wanted: dict[int, dict[int, int]] = {}
        """Piece -> row -> block of the device."""
        rest: tuple[list[int], list[int]] = ([], [])
        for here, there in zip(device_blocks, host_blocks, strict=True):
            place = self._places.get(there)
            if place is None:
                rest[0].append(here)
                rest[1].append(there)
                continue
            piece, row = place
            wanted.setdefault(piece, {})[row] = here
        for piece, by_row in wanted.items():
            targets = [by_row.get(row, NO_BLOCK) for row in range(max(by_row) + 1)]
            compute.wait(self._filled[piece])
            try:
                compute.run(partial(self._mover.scatter, piece, targets))
            finally:
                self._last_reads[piece] = compute.mark()
        return rest

    def _fill(self, piece: int, host_blocks: list[int]) -> None:
        self._places = {block: place for block, place in self._places.items() if place[0] != piece}
        self._bus.wait(self._last_reads[piece])
        # Where that fails, nobody finds what may still be on its way, and the next fetch is queued behind it.
        self._bus.run(partial(self._carry, piece, host_blocks))
        self._filled[piece] = self._bus.mark()
        self._places.update((block, (piece, row)) for row, block in enumerate(host_blocks))

    def _carry(self, piece: int, host_blocks: list[int]) -> None:
        for row, block in enumerate(host_blocks):
            self._pieces[piece][row].copy_(self._host[block], non_blocking=True)
