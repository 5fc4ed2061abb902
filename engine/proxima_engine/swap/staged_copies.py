"""Blocks on their way between device and host, in the right order and in bounded memory.

To the host: gathered from the cache into a piece of device memory, in the lane of the forward pass; then the piece
crosses the bus in a lane of its own. The gather is short, and after it the blocks may be given away. Back: over the bus
into a piece, then scattered in the lane of the forward pass.

All that touches host memory runs in the one lane of the bus, so a block that is stored, loaded and stored again is
never read half written. There are as few pieces as keep the bus busy, and each is filled again only when what read it
last has ended, whichever lane that was in.

What has crossed the bus ahead (`fetched_ahead.py`) is scattered from where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from proxima_engine.swap.block_movers import BlockMover
from proxima_engine.swap.fetched_ahead import FetchedAhead
from proxima_engine.swap.lanes import Lane, Mark


class StagedCopies:
    def __init__(
        self,
        mover: BlockMover,
        pieces: Sequence[torch.Tensor],
        ahead: int,
        host: Sequence[torch.Tensor],
        bus: Lane,
        compute: Lane,
    ) -> None:
        """`pieces`: (blocks, bytes) each, those of `mover`, the last `ahead` of them for what is fetched ahead; `host`:
        a row of bytes for each host block."""
        self._pieces = pieces[: len(pieces) - ahead]
        self._mover, self._host, self._bus = mover, host, bus
        self._ahead = FetchedAhead(mover, pieces, len(self._pieces), host, bus, compute)
        # The memory of the pieces may be in use by what was queued before they were made.
        self._last_reads: list[Mark] = [compute.mark()] * len(self._pieces)
        self._next_piece = 0

    def store(self, compute: Lane, device_blocks: Sequence[int], host_blocks: Sequence[int]) -> None:
        self._ahead.forget(host_blocks)
        for piece, here, there in self._cut(device_blocks, host_blocks):
            gather, send = partial(self._mover.gather, piece, here), partial(self._send, piece, there)
            self._pass(piece, compute, gather, self._bus, send)

    def load(self, compute: Lane, device_blocks: Sequence[int], host_blocks: Sequence[int]) -> int:
        """Returns how many had been fetched ahead."""
        device_rest, host_rest = self._ahead.scatter(compute, device_blocks, host_blocks)
        for piece, here, there in self._cut(device_rest, host_rest):
            fetch, scatter = partial(self._fetch, piece, there), partial(self._mover.scatter, piece, here)
            self._pass(piece, self._bus, fetch, compute, scatter)
        return len(host_blocks) - len(host_rest)

    def fetch_ahead(self, host_blocks: Sequence[int]) -> int:
        """Carry them over the bus; returns how many are on their way now."""
        return self._ahead.fetch(host_blocks)

    def _cut(
        self, device_blocks: Sequence[int], host_blocks: Sequence[int]
    ) -> Iterator[tuple[int, Sequence[int], Sequence[int]]]:
        """Parts that fit a piece, each with the piece whose turn it is."""
        size = len(self._pieces[0])
        for start in range(0, len(device_blocks), size):
            piece, self._next_piece = self._next_piece, (self._next_piece + 1) % len(self._pieces)
            yield piece, device_blocks[start : start + size], host_blocks[start : start + size]

    def _pass(
        self, piece: int, writer: Lane, fill: Callable[[], None], reader: Lane, drain: Callable[[], None]
    ) -> None:
        """Also where one fails, the piece's next user waits for what was queued for it."""
        writer.wait(self._last_reads[piece])
        try:
            try:
                writer.run(fill)
            finally:
                reader.wait(writer.mark())
            reader.run(drain)
        finally:
            self._last_reads[piece] = reader.mark()

    def _send(self, piece: int, host_blocks: Sequence[int]) -> None:
        for row, block in enumerate(host_blocks):
            self._host[block].copy_(self._pieces[piece][row], non_blocking=True)

    def _fetch(self, piece: int, host_blocks: Sequence[int]) -> None:
        for row, block in enumerate(host_blocks):
            self._pieces[piece][row].copy_(self._host[block], non_blocking=True)
