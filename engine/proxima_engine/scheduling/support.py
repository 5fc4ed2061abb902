"""What Proxima cannot schedule (yet), and vLLM's own order serves instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.v1.kv_cache_interface import EncoderOnlyAttentionSpec, FullAttentionSpec, UniformTypeKVCacheSpecs

from proxima_engine.swap.setup import is_ours

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec


def reason_against(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> str | None:
    """Why forecasts of blocks would be wrong for this engine, in words that follow "not for"; None where they hold."""
    if vllm_config.model_config.is_encoder_decoder:
        return "encoder-decoder models: blocks of the encoder's output are not part of the forecast"
    stages = vllm_config.parallel_config.pipeline_parallel_size
    if stages > 1:
        return f"pipeline_parallel_size={stages}: several batches are in flight, and a plan knows of one"
    if vllm_config.kv_transfer_config is not None and not is_ours(vllm_config.kv_transfer_config):
        return "kv_transfer_config: blocks that a connector holds back are not part of the forecast"
    if not all(_grows_with_text(group.kv_cache_spec) for group in kv_cache_config.kv_cache_groups):
        return "models with sliding windows or states: the forecast takes all their blocks to be held to the end"
    return None


def _grows_with_text(spec: KVCacheSpec) -> bool:
    """Whether a request takes a block more for each so many tokens, and gives none back before it ends."""
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return all(_grows_with_text(each) for each in spec.kv_cache_specs.values())
    return isinstance(spec, (FullAttentionSpec, EncoderOnlyAttentionSpec))
