"""What Proxima cannot schedule (yet), and vLLM's own order serves instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proxima_engine.swap.setup import is_ours

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def reason_against(vllm_config: VllmConfig) -> str | None:
    """Why forecasts of blocks would be wrong for this engine, in words that follow "not for"; None where they hold."""
    if vllm_config.model_config.is_encoder_decoder:
        return "encoder-decoder models: blocks of the encoder's output are not part of the forecast"
    stages = vllm_config.parallel_config.pipeline_parallel_size
    if stages > 1:
        return f"pipeline_parallel_size={stages}: several batches are in flight, and a plan knows of one"
    if vllm_config.kv_transfer_config is not None and not is_ours(vllm_config.kv_transfer_config):
        return "kv_transfer_config: blocks that a connector holds back are not part of the forecast"
    return None
