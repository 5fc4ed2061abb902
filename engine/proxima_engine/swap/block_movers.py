"""Between blocks of all layers and one piece of memory in which the bytes of a block lie together.

Our kernels do it in one launch for all layers; torch's indexing is there for where they cannot be had.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import torch

logger = logging.getLogger(__name__)
NO_BLOCK = -1
"""Stands for the block of a row that is not scattered."""


class BlockMover(Protocol):
    """Works on the stream that is current, and waits for nothing."""

    def gather(self, piece: int, blocks: Sequence[int]) -> None:
        """Row i of the piece becomes block `blocks[i]`."""
        ...

    def scatter(self, piece: int, blocks: Sequence[int]) -> None:
        """Block `blocks[i]` becomes row i of the piece, but for rows with `NO_BLOCK`."""
        ...


def bytes_per_block(layers: Sequence[torch.Tensor]) -> int:
    return sum(layer[0].numel() * layer.element_size() for layer in layers)


class KernelMover:
    """Raises ImportError without Triton, and ValueError for layers that differ in the size of a block."""

    def __init__(self, layers: Sequence[torch.Tensor], pieces: Sequence[torch.Tensor]) -> None:
        from proxima_kernels import block_copy  # Triton may be missing

        parts = [part for layer in layers for part in block_copy.dense_parts(layer)]
        self._kernels = block_copy
        self._layers = block_copy.BlockLayers(parts)
        self._stagings = [
            block_copy.Staging(self._layers, piece.view(self._layers.staging_shape(len(piece)))) for piece in pieces
        ]

    def gather(self, piece: int, blocks: Sequence[int]) -> None:
        self._kernels.gather_blocks(self._layers, blocks, self._stagings[piece])

    def scatter(self, piece: int, blocks: Sequence[int]) -> None:
        self._kernels.scatter_blocks(self._stagings[piece], self._layers, blocks)


class IndexingMover:
    """Several launches a layer, for layers of any layout."""

    def __init__(self, layers: Sequence[torch.Tensor], pieces: Sequence[torch.Tensor]) -> None:
        # Bytes: not all types can be indexed on all devices.
        self._layers = [layer.view(torch.uint8) for layer in layers]
        self._pieces = pieces

    def gather(self, piece: int, blocks: Sequence[int]) -> None:
        indices = self._indices(blocks)
        start = 0
        for layer in self._layers:
            rows = layer.index_select(0, indices).flatten(1)
            self._pieces[piece][: len(blocks), start : start + rows.shape[1]] = rows
            start += rows.shape[1]

    def scatter(self, piece: int, blocks: Sequence[int]) -> None:
        wanted = [row for row, block in enumerate(blocks) if block != NO_BLOCK]
        indices = self._indices([blocks[row] for row in wanted])
        piece_rows = self._pieces[piece][: len(blocks)]
        if len(wanted) < len(blocks):
            piece_rows = piece_rows.index_select(0, self._indices(wanted))
        start = 0
        for layer in self._layers:
            end = start + layer[0].numel()
            layer.index_copy_(0, indices, piece_rows[:, start:end].reshape(len(wanted), *layer.shape[1:]))
            start = end

    def _indices(self, blocks: Sequence[int]) -> torch.Tensor:
        indices, device = torch.tensor(blocks, dtype=torch.int64), self._layers[0].device
        # From pinned memory the copy does not make the host wait for the step in flight.
        return indices if device.type == "cpu" else indices.pin_memory().to(device, non_blocking=True)


def mover_for(layers: Sequence[torch.Tensor], pieces: Sequence[torch.Tensor]) -> BlockMover:
    """`layers` have blocks as dimension 0; `pieces` are uint8 (blocks, bytes of a block in all layers).

    To be called before anything of value is in block 0.
    """
    try:
        mover = KernelMover(layers, pieces)
        # It compiles here, so that the first who yields does not wait for that, and fails here if it cannot.
        mover.gather(0, [0])
        mover.scatter(0, [0])
    except Exception as error:  # boundary of --swap: whatever keeps the kernels from running, blocks can be indexed
        logger.warning(
            "KV blocks are gathered by PyTorch's indexing: %s: %s", type(error).__name__, error, exc_info=True
        )
        return IndexingMover(layers, pieces)
    return mover
