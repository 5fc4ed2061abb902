"""What the block moves mean, in plain torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def copy_blocks_reference(
    source: Sequence[torch.Tensor],
    target: Sequence[torch.Tensor],
    source_blocks: Sequence[int],
    target_blocks: Sequence[int],
) -> None:
    """`target[l][target_blocks[i]] = source[l][source_blocks[i]]`; a pair with a negative number is skipped."""
    pairs = [(s, t) for s, t in zip(source_blocks, target_blocks, strict=True) if s >= 0 and t >= 0]
    for from_layer, to_layer in zip(source, target, strict=True):
        for from_block, to_block in pairs:
            to_layer[to_block].copy_(from_layer[from_block])


def gather_blocks_reference(layers: Sequence[torch.Tensor], blocks: Sequence[int], staging: torch.Tensor) -> None:
    """`staging[i, l] = bytes of layers[l][blocks[i]]`, in the order in which they lie in memory."""
    for layer_index, layer in enumerate(layers):
        for index, block in enumerate(blocks):
            if block >= 0:
                staging[index, layer_index].copy_(block_bytes(layer, block))


def scatter_blocks_reference(staging: torch.Tensor, layers: Sequence[torch.Tensor], blocks: Sequence[int]) -> None:
    """The way back of `gather_blocks_reference`."""
    for layer_index, layer in enumerate(layers):
        for index, block in enumerate(blocks):
            if block >= 0:
                block_bytes(layer, block).copy_(staging[index, layer_index])


def block_bytes(layer: torch.Tensor, block: int) -> torch.Tensor:
    """One block as a flat view of bytes, in memory order (vLLM may permute heads and slots)."""
    view = layer[block]
    order = sorted(range(view.dim()), key=view.stride, reverse=True)
    return view.permute(order).reshape(-1).view(torch.uint8)
