"""The KV connector that keeps the blocks of requests that yield.

vLLM makes one beside the scheduler and one beside each model runner. What it calls when, and why loads are
synchronous, is in docs/decisions/0012-yield-without-loss.md.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    SupportsHMA,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from proxima_engine.swap.cuda_copier import AHEAD_PIECE_BYTES, AHEAD_PIECES
from proxima_engine.swap.fetch_ahead import FetchAhead
from proxima_engine.swap.scheduler_side import SwapSchedulerSide
from proxima_engine.swap.setup import HOST_BYTES, PREFIXES, block_bytes, host_blocks
from proxima_engine.swap.transfers import SwapMetadata, SwapReport
from proxima_engine.swap.worker_side import SwapWorkerSide

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = logging.getLogger(__name__)


class ProximaSwapConnector(KVConnectorBase_V1, SupportsHMA):
    _cache_hit_source = CacheHitSource.HOST

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = self._kv_transfer_config.kv_connector_extra_config
        blocks = host_blocks(kv_cache_config, extra[HOST_BYTES])
        self.scheduler_side: SwapSchedulerSide | None = None
        self._worker: SwapWorkerSide | None = None
        if role is KVConnectorRole.SCHEDULER:
            if not blocks:
                logger.warning(
                    "swap.enabled does nothing: this model's KV is of a kind that is not kept, or a block is more than "
                    "the %d bytes of a rank",
                    extra[HOST_BYTES],
                )
            piece_blocks = max(1, AHEAD_PIECE_BYTES // (block_bytes(kv_cache_config) or 1))
            self.scheduler_side = SwapSchedulerSide(
                blocks,
                vllm_config.cache_config.block_size,
                FetchAhead(piece_blocks, AHEAD_PIECES),
                prefixes=extra.get(PREFIXES, True),
            )
        else:
            self._worker = SwapWorkerSide(kv_cache_config.num_blocks, blocks)

    @property
    def requires_kv_delivery(self) -> bool:
        # A request that yields again before its KV was asked for has lost nothing.
        return False

    # -- beside the scheduler --------------------------------------------------------------------------------------

    def _scheduler_side(self) -> SwapSchedulerSide:
        if self.scheduler_side is None:
            raise RuntimeError("asked of the scheduler's connector, and this is a worker's")
        return self.scheduler_side

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int, bool]:
        return self._scheduler_side().tokens_beyond(request, num_computed_tokens), False

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        self._scheduler_side().allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> SwapMetadata:
        return self._scheduler_side().take_metadata(scheduler_output)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        report = connector_output.kv_connector_worker_meta
        if isinstance(report, SwapReport):
            self._scheduler_side().take_report(report)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:  # noqa: ARG002
        self._scheduler_side().ended(request.request_id)
        return False, None

    def request_finished_all_groups(
        self,
        request: Request,
        block_ids: tuple[list[int], ...],  # noqa: ARG002
    ) -> tuple[bool, dict[str, Any] | None]:
        self._scheduler_side().ended(request.request_id)
        return False, None

    def reset_cache(self) -> bool:
        self._scheduler_side().forget_all()
        return True

    # -- beside the model runner -----------------------------------------------------------------------------------

    def _worker_side(self) -> SwapWorkerSide:
        if self._worker is None:
            raise RuntimeError("asked of a worker's connector, and this is the scheduler's")
        return self._worker

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._worker_side().register(kv_caches)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        if isinstance(kv_connector_metadata, SwapMetadata):
            self._worker_side().store(kv_connector_metadata.stores, kv_connector_metadata.step)

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:  # noqa: ARG002
        metadata = self._get_connector_metadata()
        if isinstance(metadata, SwapMetadata):
            self._worker_side().load(metadata.loads)
            self._worker_side().fetch_ahead(metadata.fetches)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """All layers are there, or are on their way in the order of the stream, when the forward pass begins."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: AttentionMetadata, **kwargs: Any
    ) -> None:
        """Nothing is saved before somebody yields."""

    def wait_for_save(self) -> None:
        """Nothing is saved in the forward pass."""

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._worker_side().take_bad_device_blocks()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        return self._worker_side().take_report()
