"""Move KV blocks of all layers in one launch: copy-on-write, swap-out and swap-in.

A *layer* here is the cache tensor of one layer: dimension 0 counts blocks, and the bytes of a block lie together in
memory. Memory is either on the device or pinned on the host, which the device reads and writes over the bus: one
launch replaces one `cudaMemcpyAsync` per block and layer. Launches go to torch's current stream and do not wait.

    layers = BlockLayers(kv_caches)                       # once: addresses go to the device
    copy_blocks(layers, layers, [3, 4], [7, 9])           # copy on write
    copy_blocks(layers, BlockLayers(pinned), ids, slots)  # swap out; the other way round swaps in
    staging = Staging(layers, torch.empty(layers.staging_shape(64), dtype=torch.uint8, device="cuda"))   # once, too
    gather_blocks(layers, ids, staging)                   # row i of staging.buffer: block ids[i] of all layers
    scatter_blocks(staging, layers, ids)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

from proxima_kernels.arguments import check_dense, check_dtype, check_indices, check_runnable, check_shape
from proxima_kernels.block_copy_kernel import move_blocks_kernel
from proxima_kernels.launch import INTERPRETED

TILE_BYTES = 8192
Blocks: TypeAlias = "Sequence[int] | torch.Tensor"


class BlockLayers:
    """Cache tensors of all layers, checked once, with the table of their addresses on the device.

    The tensors must stay alive and unmoved while this object is used; it holds references to them.

    Raises:
        ValueError: no layers; layers whose numbers of blocks or bytes a block differ; blocks that are not dense;
            memory that a device cannot reach (host memory that is not pinned).
    """

    def __init__(self, layers: Sequence[torch.Tensor], device: torch.device | str | None = None) -> None:
        if not layers:
            raise ValueError("layers is empty: give one cache tensor per layer")
        self.layers = tuple(layers)
        self.num_blocks = int(layers[0].shape[0])
        self.block_bytes = _bytes_of_a_block(layers[0])
        for index, layer in enumerate(self.layers):
            _check_layer(f"layers[{index}]", layer, self.num_blocks, self.block_bytes)
        rows = [[layer.data_ptr(), layer.stride(0) * layer.element_size()] for layer in self.layers]
        self.table = torch.tensor(rows, dtype=torch.int64, device=device or _device_of(self.layers[0]))
        # With its number, where `device` was "cuda": tensors of indices are on a numbered one.
        self.device = self.table.device
        #: Whether 16 bytes at a time may be moved.
        self.aligned = self.block_bytes % 16 == 0 and all(a % 16 == 0 and s % 16 == 0 for a, s in rows)

    def staging_shape(self, blocks: int) -> tuple[int, int, int]:
        """(blocks, layers, bytes a block): what a buffer for `blocks` blocks of all layers looks like."""
        return blocks, len(self.layers), self.block_bytes


def dense_parts(layer: torch.Tensor) -> list[torch.Tensor]:
    """Views in each of which the bytes of a block lie together, which `BlockLayers` wants.

    The layer itself, but where something is counted outside of the blocks, as heads are in vLLM's LHBNC: then one view
    for each of these.
    """
    parts = [layer]
    while parts[0].dim() > 2 and not _is_dense(parts[0]):
        outermost = max(range(1, parts[0].dim()), key=parts[0].stride)
        parts = [view for part in parts for view in part.unbind(outermost)]
    return parts


class Staging:
    """A buffer in which the bytes of a block lie together over all layers, for one large transfer.

    Made once, like `BlockLayers`: its table of addresses goes to the device and waits for what is queued there.

    Raises:
        ValueError, TypeError: naming the argument.
    """

    def __init__(self, layers: BlockLayers, buffer: torch.Tensor) -> None:
        check_dtype("buffer", buffer, [torch.uint8])
        check_shape("buffer", buffer, ["blocks", *layers.staging_shape(0)[1:]])
        check_dense("buffer", buffer)
        self.buffer = buffer
        self.layers = BlockLayers([buffer[:, index] for index in range(buffer.shape[1])], layers.device)
        self._rows = torch.arange(len(buffer), dtype=torch.int64, device=layers.device)

    def first_rows(self, blocks: Blocks) -> torch.Tensor:
        """Where `blocks` lie: as many rows. ValueError if there are fewer."""
        if len(blocks) > len(self._rows):
            raise ValueError(f"blocks has {len(blocks)} entries: must be at most the {len(self._rows)} of staging")
        return self._rows[: len(blocks)]


def copy_blocks(source: BlockLayers, target: BlockLayers, source_blocks: Blocks, target_blocks: Blocks) -> None:
    """Copy block `source_blocks[i]` of every source layer to block `target_blocks[i]` of the same target layer.

    Within the same layers no target may be a source too: moves run in any order. Lists are checked for this, for
    range and for a target named twice; tensors of indices (int64, on the device) are not, because that would wait
    for the device. A pair with a negative number on either side is skipped.

    Raises:
        ValueError, TypeError: naming the argument.
    """
    if len(source.layers) != len(target.layers):
        raise ValueError(f"target has {len(target.layers)} layers: must have {len(source.layers)}, as source has")
    if source.block_bytes != target.block_bytes:
        raise ValueError(f"target has {target.block_bytes} bytes a block: must be {source.block_bytes}, as in source")
    moves = len(source_blocks)
    if len(target_blocks) != moves:
        raise ValueError(f"target_blocks has {len(target_blocks)} entries: must be {moves}, as many as source_blocks")
    if isinstance(source_blocks, Sequence) and isinstance(target_blocks, Sequence):
        _check_pairs(source_blocks, target_blocks, same=source.table is target.table)
    device = source.device if source.device.type == "cuda" else target.device
    sources = _indices("source_blocks", source_blocks, source.num_blocks, device)
    targets = _indices("target_blocks", target_blocks, target.num_blocks, device)
    if moves == 0:
        return
    wide = source.aligned and target.aligned
    words = source.block_bytes // 16 if wide else source.block_bytes
    tile = TILE_BYTES // 8 if wide else TILE_BYTES
    tiles = -(-source.block_bytes // TILE_BYTES)
    move_blocks_kernel[(moves, len(source.layers), tiles)](
        source.table, target.table, sources, targets, WORDS=words, WORD_BYTES=16 if wide else 1, TILE=tile
    )


def gather_blocks(layers: BlockLayers, blocks: Blocks, staging: Staging) -> None:
    """Collect blocks of all layers into the first rows of `staging`; a negative number leaves its row as it is.

    Raises:
        ValueError, TypeError: naming the argument.
    """
    copy_blocks(layers, staging.layers, blocks, staging.first_rows(blocks))


def scatter_blocks(staging: Staging, layers: BlockLayers, blocks: Blocks) -> None:
    """The way back of `gather_blocks`."""
    if isinstance(blocks, Sequence):
        _check_pairs(range(len(blocks)), blocks, same=False)
    copy_blocks(staging.layers, layers, staging.first_rows(blocks), blocks)


def _device_of(tensor: torch.Tensor) -> torch.device:
    return tensor.device if tensor.is_cuda or INTERPRETED else torch.device("cuda", torch.cuda.current_device())


def _bytes_of_a_block(layer: torch.Tensor) -> int:
    return int(layer[:1].numel() * layer.element_size())


def _check_layer(name: str, layer: torch.Tensor, num_blocks: int, block_bytes: int) -> None:
    if layer.dim() < 2 or layer.shape[0] != num_blocks:
        raise ValueError(f"{name} has shape {tuple(layer.shape)}: dimension 0 must be {num_blocks} blocks")
    if _bytes_of_a_block(layer) != block_bytes:
        raise ValueError(f"{name} has {_bytes_of_a_block(layer)} bytes a block: must be {block_bytes}, as in layers[0]")
    if not _is_dense(layer):
        raise ValueError(f"{name} has strides {layer.stride()}: the elements of a block must lie together")
    _check_reachable(name, layer)


def _is_dense(layer: torch.Tensor) -> bool:
    """Whether a block has its elements side by side, in any order. No two of them share memory."""
    reach = 1 + sum((size - 1) * step for size, step in zip(layer.shape[1:], layer.stride()[1:], strict=True))
    return bool(reach == layer[0].numel())


def _check_reachable(name: str, tensor: torch.Tensor) -> None:
    if tensor.device.type == "cpu" and not INTERPRETED and not tensor.is_pinned():
        raise ValueError(f"{name} is in pageable host memory: the device reaches pinned host memory only")
    if tensor.device.type != "cpu":
        check_runnable(name, tensor, interpreted=INTERPRETED)


def _indices(name: str, blocks: Blocks, num_blocks: int, device: torch.device) -> torch.Tensor:
    if isinstance(blocks, torch.Tensor):
        check_indices(name, blocks, ["moves"], device)
        return blocks.to(torch.int64)
    for block in blocks:
        if block >= num_blocks:
            raise ValueError(f"{name} has block {block}: must be below {num_blocks}")
    indices = torch.tensor(list(blocks), dtype=torch.int64)
    # From pinned memory the copy does not make the host wait for work queued before it.
    return indices if device.type == "cpu" else indices.pin_memory().to(device, non_blocking=True)


def _check_pairs(sources: Sequence[int], targets: Sequence[int], *, same: bool) -> None:
    pairs = [(source, target) for source, target in zip(sources, targets, strict=True) if source >= 0 and target >= 0]
    written = [target for _, target in pairs]
    if len(set(written)) != len(written):
        raise ValueError(f"target_blocks names a block twice: {min(b for b in written if written.count(b) > 1)}")
    both = {source for source, _ in pairs} & set(written)
    if same and both:
        raise ValueError(f"target_blocks has block {min(both)}, which is in source_blocks too: moves run in any order")
