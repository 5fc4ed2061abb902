"""The batch sizes that vLLM serves with where none is given, which depend on the device.

By the same rules as `EngineArgs.get_batch_defaults` of vLLM 0.32, without importing it; a contract test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass

from proxima_bench.machine import Gpu

_GIB = 1 << 30


@dataclass(frozen=True)
class Batch:
    max_num_batched_tokens: int
    max_num_seqs: int

    def times(self, factor: int) -> Batch:
        return Batch(self.max_num_batched_tokens * factor, self.max_num_seqs * factor)


def batch_defaults(gpu: Gpu | None, *, world_size: int, throughput: bool) -> Batch:
    """``gpu`` is None for a CPU, ``world_size`` the ranks that share a model's layers, ``throughput`` whether
    `--performance-mode throughput` is given."""
    return _defaults(gpu, world_size).times(2 if throughput else 1)


def _defaults(gpu: Gpu | None, world_size: int) -> Batch:
    if gpu is None:
        return Batch(2048, 128).times(world_size)
    if gpu.memory_bytes >= 160 * _GIB:
        return Batch(16384, 1024)
    if gpu.memory_bytes >= 70 * _GIB and "a100" not in gpu.name.lower():
        return Batch(8192, 1024)
    return Batch(2048, 256)
