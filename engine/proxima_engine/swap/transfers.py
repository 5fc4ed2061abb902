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

    step: int = 0
    """Number of the step; later ones have higher numbers."""
    stores: tuple[Transfer, ...] = ()
    loads: tuple[Transfer, ...] = ()
    fetches: tuple[int, ...] = ()
    """Host blocks that a later step is going to load: to be brought nearer beside the forward pass, if that helps."""


@dataclass(frozen=True, slots=True)
class SwapReport(KVConnectorWorkerMetadata):
    """What a worker did in one step."""

    step: int = 0
    """That step, or the last of several."""
    failed: frozenset[str] = frozenset()
    """Requests of which a copy failed, in either direction: nothing of theirs on the host is to be trusted."""
    bad_host_blocks: frozenset[int] = frozenset()
    """Blocks of those copies."""
    loads_failed: bool = False
    """Whether blocks of the device were not filled. What was computed on them in this step is wrong."""
    bytes_out: int = 0
    bytes_in: int = 0
    copy_s: float = 0.0
    """Seconds for which copies held the worker up."""
    under_way_s: float = 0.0
    """Seconds for which blocks were on their way, beside forward passes or not."""
    blocks_fetched: int = 0
    """Carried over the bus ahead of a load."""
    blocks_found_fetched: int = 0
    """Of those that were loaded, how many had been."""

    def aggregate(self, other: KVConnectorWorkerMetadata) -> SwapReport:
        """Of several ranks: they copy side by side, each a part of each block."""
        if not isinstance(other, SwapReport):
            raise TypeError(f"a swap report cannot be added to {type(other).__name__}")
        return SwapReport(
            max(self.step, other.step),
            self.failed | other.failed,
            self.bad_host_blocks | other.bad_host_blocks,
            self.loads_failed or other.loads_failed,
            self.bytes_out + other.bytes_out,
            self.bytes_in + other.bytes_in,
            max(self.copy_s, other.copy_s),
            max(self.under_way_s, other.under_way_s),
            max(self.blocks_fetched, other.blocks_fetched),
            max(self.blocks_found_fetched, other.blocks_found_fetched),
        )
