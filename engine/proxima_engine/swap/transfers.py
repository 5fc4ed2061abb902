"""What the scheduler's half of the connector tells the worker's half about one step, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata


@dataclass(frozen=True, slots=True)
class Transfer:
    """Blocks of one request; ``device_blocks[i]`` and ``host_blocks[i]`` hold the same tokens."""

    request_id: str
    device_blocks: tuple[int, ...]
    host_blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SwapMetadata(KVConnectorMetadata):
    """Of one step. Stores come before anything of the step is written, loads after them and before the forward pass."""

    stores: tuple[Transfer, ...] = ()
    loads: tuple[Transfer, ...] = ()


@dataclass(frozen=True, slots=True)
class SwapReport(KVConnectorWorkerMetadata):
    """What a worker did in one step."""

    failed: frozenset[str] = frozenset()
    """Requests of which a copy failed, in either direction: nothing of theirs on the host is to be trusted."""
    bytes_out: int = 0
    bytes_in: int = 0
    copy_s: float = 0.0
    """Seconds for which copies held the worker up."""

    def aggregate(self, other: KVConnectorWorkerMetadata) -> SwapReport:
        """Of several ranks: they copy side by side, each a part of each block."""
        if not isinstance(other, SwapReport):
            raise TypeError(f"a swap report cannot be added to {type(other).__name__}")
        return SwapReport(
            self.failed | other.failed,
            self.bytes_out + other.bytes_out,
            self.bytes_in + other.bytes_in,
            max(self.copy_s, other.copy_s),
        )
