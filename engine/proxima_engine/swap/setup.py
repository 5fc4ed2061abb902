"""When KV is kept on the host, and how vLLM is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.config import KVTransferConfig
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig

if TYPE_CHECKING:
    from vllm.config import VllmConfig

CONNECTOR = "ProximaSwapConnector"
CONNECTOR_MODULE = "proxima_engine.swap.connector"
HOST_BYTES = "host_bytes"
PREFIXES = "prefixes"


def reason_against(vllm_config: VllmConfig) -> str | None:
    """Why an engine cannot keep KV on the host, in words that follow "not for"; None if it can."""
    parallel = vllm_config.parallel_config
    if vllm_config.model_config.is_encoder_decoder:
        return "encoder-decoder models"
    if vllm_config.model_config.runner_type != "generate":
        return "models that do not generate"
    if vllm_config.speculative_config is not None:
        return "speculative decoding: drafts have KV of their own"
    for name in ("pipeline_parallel_size", "decode_context_parallel_size", "prefill_context_parallel_size"):
        if (size := getattr(parallel, name)) > 1:
            return f"{name}={size}"
    return None


def transfer_config(vllm_config: VllmConfig, host_bytes: int, *, prefixes: bool = True) -> KVTransferConfig:
    """``host_bytes`` are for all ranks on this machine together; ``prefixes``: whether to keep, too, what the prefix
    cache gives up."""
    parallel = vllm_config.parallel_config
    ranks = parallel.tensor_parallel_size * max(1, parallel.data_parallel_size_local)
    return KVTransferConfig(
        kv_connector=CONNECTOR,
        kv_connector_module_path=CONNECTOR_MODULE,
        # Not kv_both: a consumer's blocks are freed steps later, for loads that are not in the order of the device's
        # stream. Ours are.
        kv_role="kv_producer",
        # A load that failed costs a recompute, not the request.
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={HOST_BYTES: host_bytes // ranks, PREFIXES: prefixes},
    )


def is_ours(config: KVTransferConfig | None) -> bool:
    return config is not None and config.kv_connector == CONNECTOR


def block_bytes(cache: KVCacheConfig) -> int | None:
    """Of a block in all layers of one rank; None where their KV is of a kind that is not kept."""
    if len(cache.kv_cache_groups) != 1:
        return None
    (group,) = cache.kv_cache_groups
    spec = group.kv_cache_spec
    if not isinstance(spec, FullAttentionSpec) or spec.sliding_window or spec.attention_chunk_size:
        return None
    size: int = spec.page_size_bytes * len(group.layer_names)
    return size


def host_blocks(cache: KVCacheConfig, host_bytes: Any) -> int:
    """Blocks for one rank; 0 where the layers' KV is of a kind that is not kept."""
    size = block_bytes(cache)
    return 0 if size is None else int(host_bytes) // size
