"""Copies between a CUDA device and pinned host memory: streams, events and memory for `staged_copies.py`."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from proxima_engine.swap.block_movers import bytes_per_block, mover_for
from proxima_engine.swap.lanes import CopyTimes, CudaLane, HoldUps, TimedLane
from proxima_engine.swap.staged_copies import StagedCopies

logger = logging.getLogger(__name__)
PIECES = 2
"""One is filled while the other crosses the bus."""
PIECE_BYTES = 64 << 20
"""Of device memory, beside what vLLM plans with: 128 MiB in all. Over PCIe a piece takes milliseconds, far longer
than to start its copies. Who yields with more than two pieces makes the forward pass wait for the bus."""
AHEAD_PIECES = 4
AHEAD_PIECE_BYTES = 32 << 20
"""Of device memory as well, another 128 MiB, for what is fetched ahead. A step fetches one such piece: what is stored
or loaded in the next step stands behind it in the lane of the bus."""
PINNED_BYTES = 256 << 20
"""Of one allocation of pinned memory. PyTorch rounds each up to a power of two: of 20 GiB at once it would make 32."""


def _pinned_rows(count: int, row_bytes: int) -> list[torch.Tensor]:
    together = max(1, PINNED_BYTES // row_bytes)
    sizes = [min(together, count - first) for first in range(0, count, together)]
    allocations = [torch.empty((size, row_bytes), dtype=torch.uint8, pin_memory=True) for size in sizes]
    return [row for allocation in allocations for row in allocation]


class CudaCopier:
    """`layers` have blocks as dimension 0."""

    def __init__(self, layers: Sequence[torch.Tensor], host_blocks: int) -> None:
        self._device = layers[0].device
        self.bytes_per_block = bytes_per_block(layers)
        pieces = self._pieces(PIECES, PIECE_BYTES, host_blocks)
        try:
            ahead = self._pieces(AHEAD_PIECES, AHEAD_PIECE_BYTES, host_blocks)
        except torch.OutOfMemoryError:
            logger.warning("no device memory to fetch KV from the host ahead: it is loaded when it is needed")
            ahead = []
        pieces += ahead
        self._bus = TimedLane(CudaLane(torch.cuda.Stream(self._device)))
        self._copies = StagedCopies(
            mover_for(layers, pieces),
            pieces,
            len(ahead),
            _pinned_rows(host_blocks, self.bytes_per_block),
            bus=self._bus,
            compute=self._compute(),
        )
        self._hold_ups = HoldUps()

    def store(self, device_blocks: Sequence[int], host_blocks: Sequence[int]) -> None:
        compute = self._compute()
        with self._hold_ups.of(compute):
            self._copies.store(compute, device_blocks, host_blocks)

    def load(self, device_blocks: Sequence[int], host_blocks: Sequence[int]) -> int:
        compute = self._compute()
        with self._hold_ups.of(compute):
            return self._copies.load(compute, device_blocks, host_blocks)

    def fetch_ahead(self, host_blocks: Sequence[int]) -> int:
        return self._copies.fetch_ahead(host_blocks)

    def take_times(self) -> CopyTimes:
        return CopyTimes(self._hold_ups.take_seconds(), self._bus.take_seconds())

    def _pieces(self, count: int, size_bytes: int, host_blocks: int) -> list[torch.Tensor]:
        blocks = max(1, min(host_blocks, size_bytes // self.bytes_per_block))
        shape = blocks, self.bytes_per_block
        return [torch.empty(shape, dtype=torch.uint8, device=self._device) for _ in range(count)]

    def _compute(self) -> CudaLane:
        """The stream that the forward pass is queued in."""
        return CudaLane(torch.cuda.current_stream(self._device))
