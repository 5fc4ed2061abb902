"""Copies of KV blocks between the device's cache and host memory, over all layers at once.

One class for each kind of device, behind the same methods. Both treat a block as one row of bytes for each layer,
whatever the layout of the attention backend is: all that is asked of it is one dimension that counts blocks.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from proxima_engine.swap.block_movers import bytes_per_block
from proxima_engine.swap.cuda_copier import CudaCopier
from proxima_engine.swap.lanes import CopyTimes

Bytes = NDArray[np.uint8]


class UnknownLayoutError(ValueError):
    """No dimension, or more than one, of a KV cache counts its blocks."""


class Copier(Protocol):
    bytes_per_block: int

    def store(self, device_blocks: Sequence[int], host_blocks: Sequence[int]) -> None:
        """Copy to the host. What is queued on the device before is seen, what is queued after is not."""
        ...

    def load(self, device_blocks: Sequence[int], host_blocks: Sequence[int]) -> int:
        """Copy back. What is queued on the device after it sees the result. Returns how many had been fetched ahead."""
        ...

    def fetch_ahead(self, host_blocks: Sequence[int]) -> int:
        """They are going to be loaded: bring them nearer, as far as there is room, in nobody's way. Returns how many
        are nearer than before. What is stored to them later is what a load brings."""
        ...

    def take_times(self) -> CopyTimes:
        """Of copies that have ended since the last call."""
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


def _bytes(layer: torch.Tensor) -> Bytes:
    """The same memory. NumPy does not know all element types of KV caches."""
    seen: Bytes = layer.view(torch.uint8).numpy()
    return seen


class CpuCopier:
    """Device and host are the same memory: nothing can be brought nearer, and a copy is done when it returns."""

    def __init__(self, caches: Mapping[str, torch.Tensor], num_blocks: int, host_blocks: int) -> None:
        layers = _layers(caches, num_blocks)
        # The operating system hands out pages when they are written first: an unused pool takes no memory.
        host = [layer.new_empty((host_blocks, *layer.shape[1:])) for layer in layers]
        self.bytes_per_block = bytes_per_block(layers)
        self._layers = [_bytes(layer) for layer in layers]
        self._host = [_bytes(layer) for layer in host]
        self._seconds = 0.0

    def store(self, device_blocks: Sequence[int], host_blocks: Sequence[int]) -> None:
        self._copy(self._layers, device_blocks, self._host, host_blocks)

    def load(self, device_blocks: Sequence[int], host_blocks: Sequence[int]) -> int:
        self._copy(self._host, host_blocks, self._layers, device_blocks)
        return 0

    def fetch_ahead(self, host_blocks: Sequence[int]) -> int:  # noqa: ARG002  no bus lies between
        return 0

    def take_times(self) -> CopyTimes:
        seconds, self._seconds = self._seconds, 0.0
        return CopyTimes(seconds, seconds)

    def _copy(
        self,
        sources: Sequence[Bytes],
        from_blocks: Sequence[int],
        targets: Sequence[Bytes],
        to_blocks: Sequence[int],
    ) -> None:
        started_s = time.perf_counter()
        pairs = list(zip(from_blocks, to_blocks, strict=True))
        for source, target in zip(sources, targets, strict=True):
            # One by one: torch's indexing starts all threads for each layer, which takes longer than to copy a few
            # blocks, and ten times as long when anything else runs on those cores. NumPy copies in this thread,
            # without what torch does around each call.
            for old, new in pairs:
                target[new] = source[old]
        self._seconds += time.perf_counter() - started_s


def copier_for(caches: Mapping[str, torch.Tensor], num_blocks: int, host_blocks: int) -> Copier:
    if next(iter(caches.values())).device.type == "cuda":
        return CudaCopier(_layers(caches, num_blocks), host_blocks)
    return CpuCopier(caches, num_blocks, host_blocks)
