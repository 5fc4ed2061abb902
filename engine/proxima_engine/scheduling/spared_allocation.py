"""vLLM's KV-cache manager, spared the way through allocation where a token needs nothing of it.

In each step it is asked for every request that runs, and nearly all of them have one token more in a block that they
hold, and fill none. vLLM goes through all that this could be (new blocks, a sliding window, blocks to cache) to find
that it is none of them. This looks first, and leaves everything else to vLLM; what comes out is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.request import RequestStatus

if TYPE_CHECKING:
    from vllm.v1.request import Request


class SparedKVCacheManager(KVCacheManager):
    """For one group of full attention. Adds no state, so that a manager that vLLM has made can be made one of these."""

    def allocate_slots(
        self, request: Request, num_new_tokens: int, *args: Any, num_lookahead_tokens: int = 0, **options: Any
    ) -> KVCacheBlocks | None:
        others = args or options or num_lookahead_tokens
        if num_new_tokens == 1 and not others and request.status is RequestStatus.RUNNING and self._has_room(request):
            return self.empty_kv_cache_blocks
        return super().allocate_slots(
            request, num_new_tokens, *args, num_lookahead_tokens=num_lookahead_tokens, **options
        )

    def _has_room(self, request: Request) -> bool:
        """Whether one token more has a place in a block that is there, and fills none that would be cached."""
        (group,) = self.coordinator.single_type_managers
        request_id, size, tokens = request.request_id, group.block_size, request.num_computed_tokens + 1
        if tokens > len(group.req_to_blocks[request_id]) * size:
            return False
        return not self.enable_caching or tokens // size <= group.num_cached_block.get(request_id, 0)


def spare(manager: KVCacheManager) -> bool:
    """Spare a manager that way if it is one that this is for; whether it is."""
    groups = manager.coordinator.single_type_managers
    # Blocks that are hashed by smaller units are cached in parts, too.
    fits = len(groups) == 1 and type(groups[0]) is FullAttentionManager and type(manager) is KVCacheManager
    if fits and groups[0].block_size == manager.block_pool.hash_block_size:
        manager.__class__ = SparedKVCacheManager
        return True
    return False
