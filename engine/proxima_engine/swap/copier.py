"""Copies of KV blocks between the device's cache and host memory, over all layers at once.

One class for each kind of device, behind the same three methods. Both treat a block as one row of bytes for each layer,
whatever the layout of the attention backend is: all that is asked of it is one dimension that counts blocks.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch

STAGED_BLOCKS = 64
"""Blocks that pass through device memory at once on CUDA."""
PINNED_BYTES = 256 << 20
"""Of one piece of pinned memory. PyTorch rounds each up to a power of two: of 20 GiB at once it would make 32."""


class UnknownLayoutError(ValueError):
    """No dimension, or more than one, of a KV cache counts its blocks."""


class Copier(Protocol):
    bytes_per_block: int

    def store(self, device_blocks: Sequence[int], host_blocks: Sequence[int]) -> None:
        """Copy to the host. What is queued on the device before is seen, what is queued after is not."""
        ...

    def load(self, device_blocks: Sequence[int], host_blocks: Sequence[int]) -> None:
        """Copy back. What is queued on the device after it sees the result."""
        ...

    def take_seconds(self) -> float:
        """For which copies held the device up, of those that have ended since the last call."""
        ...


def block_rows(cache: torch.Tensor, num_blocks: int) -> torch.Tensor:
    """A view of a layer's cache with the blocks of the scheduler as its first dimension.

    A kernel may use blocks that are a whole fraction of the scheduler's. Raises UnknownLayoutError.
    """
    counting = [dim for dim in (0, 1) if dim < cache.dim() and cache.shape[dim] and not cache.shape[dim] % num_blocks]
    if len(counting) != 1:
        raise UnknownLayoutError(f"a KV cache of shape {tuple(cache.shape)} for {num_blocks} blocks")
    rows = cache.movedim(counting[0], 0)
    return rows.unflatten(0, (num_blocks, -1))


def _layers(caches: Mapping[str, torch.Tensor], num_blocks: int) -> list[torch.Tensor]:
    """One view for each memory: layers may share a cache."""
    distinct = {cache.data_ptr(): cache for cache in caches.values()}
    return [block_rows(cache, num_blocks) for cache in distinct.values()]


def _bytes_per_block(layers: Sequence[torch.Tensor]) -> int:
    return sum(layer[0].numel() * layer.element_size() for layer in layers)


class CpuCopier:
    """Device and host are the same memory, and a copy is done when it returns."""

    def __init__(self, caches: Mapping[str, torch.Tensor], num_blocks: int, host_blocks: int) -> None:
        self._layers = _layers(caches, num_blocks)
        # The operating system hands out pages when they are written first: an unused pool takes no memory.
        self._host = [layer.new_empty((host_blocks, *layer.shape[1:])) for layer in self._layers]
        self.bytes_per_block = _bytes_per_block(self._layers)
        self._seconds = 0.0

    def store(self, device_blocks: Sequence[int], host_blocks: Sequence[int]) -> None:
        self._copy(self._layers, device_blocks, self._host, host_blocks)

    def load(self, device_blocks: Sequence[int], host_blocks: Sequence[int]) -> None:
        self._copy(self._host, host_blocks, self._layers, device_blocks)

    def take_seconds(self) -> float:
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _copy(
        self,
        sources: Sequence[torch.Tensor],
        from_blocks: Sequence[int],
        targets: Sequence[torch.Tensor],
        to_blocks: Sequence[int],
    ) -> None:
        started_s = time.perf_counter()
        pairs = list(zip(from_blocks, to_blocks, strict=True))
        for source, target in zip(sources, targets, strict=True):
            # One by one: indexing starts all threads for each layer, which takes longer than to copy a few blocks, and
            # ten times as long when anything else runs on those cores.
            for old, new in pairs:
                target[new].copy_(source[old])
        self._seconds += time.perf_counter() - started_s


def _pinned_rows(count: int, row_bytes: int) -> list[torch.Tensor]:
    together = max(1, PINNED_BYTES // row_bytes)
    sizes = [min(together, count - first) for first in range(0, count, together)]
    pieces = [torch.empty((size, row_bytes), dtype=torch.uint8, pin_memory=True) for size in sizes]
    return [row for piece in pieces for row in piece]


class CudaCopier:
    """Blocks are gathered into one piece on the device, in the order of the compute stream, and cross the bus on a
    stream of their own.

    The gather is short and is ordered by the stream, so the blocks may be given away at once. All that touches host
    memory runs on the one copy stream, so a block that is stored, loaded and stored again is never read half written.
    """

    def __init__(self, caches: Mapping[str, torch.Tensor], num_blocks: int, host_blocks: int) -> None:
        self._layers = _layers(caches, num_blocks)
        self._device = self._layers[0].device
        self.bytes_per_block = _bytes_per_block(self._layers)
        self._host = _pinned_rows(host_blocks, self.bytes_per_block)
        self._stream = torch.cuda.Stream(self._device)
        self._timed: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    def store(self, device_blocks: Sequence[int], host_blocks: Sequence[int]) -> None:
        with self._holding_up():
            self._store(device_blocks, host_blocks)

    def load(self, device_blocks: Sequence[int], host_blocks: Sequence[int]) -> None:
        with self._holding_up():
            self._load(device_blocks, host_blocks)

    def take_seconds(self) -> float:
        seconds = 0.0
        while self._timed and self._timed[0][1].query():
            begun, ended = self._timed.popleft()
            seconds += begun.elapsed_time(ended) / 1000
        return seconds

    @contextmanager
    def _holding_up(self) -> Iterator[None]:
        """Note how long the compute stream is busy with it, or waits for it."""
        compute = torch.cuda.current_stream(self._device)
        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begun.record(compute)
        yield
        ended.record(compute)
        self._timed.append((begun, ended))

    def _store(self, device_blocks: Sequence[int], host_blocks: Sequence[int]) -> None:
        for start in range(0, len(device_blocks), STAGED_BLOCKS):
            chosen = slice(start, start + STAGED_BLOCKS)
            staged = self._gather(self._indices(device_blocks[chosen]))
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(self._stream):
                for row, block in zip(staged, host_blocks[chosen], strict=True):
                    self._host[block].copy_(row, non_blocking=True)
            # The allocator may not reuse it on the compute stream while the copy stream still reads it.
            staged.record_stream(self._stream)

    def _load(self, device_blocks: Sequence[int], host_blocks: Sequence[int]) -> None:
        compute = torch.cuda.current_stream(self._device)
        for start in range(0, len(device_blocks), STAGED_BLOCKS):
            chosen = slice(start, start + STAGED_BLOCKS)
            with torch.cuda.stream(self._stream):
                blocks = host_blocks[chosen]
                staged = torch.empty((len(blocks), self.bytes_per_block), dtype=torch.uint8, device=self._device)
                for row, block in zip(staged, blocks, strict=True):
                    row.copy_(self._host[block], non_blocking=True)
            compute.wait_stream(self._stream)
            self._scatter(self._indices(device_blocks[chosen]), staged)
            staged.record_stream(compute)

    def _indices(self, blocks: Sequence[int]) -> torch.Tensor:
        # From pinned memory the copy does not make the host wait for the step in flight.
        return torch.tensor(blocks, dtype=torch.int64).pin_memory().to(self._device, non_blocking=True)

    def _gather(self, blocks: torch.Tensor) -> torch.Tensor:
        rows = [layer.index_select(0, blocks).flatten(1).view(torch.uint8) for layer in self._layers]
        return torch.cat(rows, dim=1)

    def _scatter(self, blocks: torch.Tensor, staged: torch.Tensor) -> None:
        start = 0
        for layer in self._layers:
            size = layer[0].numel() * layer.element_size()
            row = staged[:, start : start + size].contiguous().view(layer.dtype)
            layer.index_copy_(0, blocks, row.view(len(blocks), *layer.shape[1:]))
            start += size


def copier_for(caches: Mapping[str, torch.Tensor], num_blocks: int, host_blocks: int) -> Copier:
    device = next(iter(caches.values())).device
    return (CudaCopier if device.type == "cuda" else CpuCopier)(caches, num_blocks, host_blocks)
