"""Which blocks lose what they hold: the prefix cache gives them to somebody else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.v1.core.kv_cache_utils import get_block_hash

from proxima_engine.swap.host_pool import Key

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_utils import KVCacheBlock


class EvictionWatch:
    """Sees each block that a pool hands out, before the pool forgets what it holds; vLLM has no hook for that.

    Only the first time in a step counts. What a block is said to hold that is handed out again, because the request
    that got it yields in the same step, was never computed.
    """

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self._evict = pool._maybe_evict_cached_block  # noqa: SLF001
        self._block_size = block_size
        self._seen: set[int] = set()
        self._lost: list[tuple[Key, int]] = []
        pool._maybe_evict_cached_block = self._see  # noqa: SLF001

    def take(self) -> list[tuple[Key, int]]:
        """Hash and number of each block that was given away since the last call."""
        lost, self._lost = self._lost, []
        self._seen.clear()
        return lost

    def overlook(self, blocks: set[int]) -> None:
        """What these are said to hold is not to be kept, whoever gets them in this step."""
        self._seen |= blocks

    def _see(self, block: KVCacheBlock) -> bool:
        if block.block_id not in self._seen:
            self._seen.add(block.block_id)
            if block.block_hash is not None and not (block.block_hash_num_tokens or 0) % self._block_size:
                self._lost.append((get_block_hash(block.block_hash), block.block_id))
        return bool(self._evict(block))
