"""vLLM's scheduler and KV-cache manager without a model, a worker or a device."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.structured_output import StructuredOutputManager

SchedulerFactory = Callable[..., Scheduler]
"""Called as vLLM calls its scheduler class."""
_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 1000,
    "max_position_embeddings": 1 << 20,
    "torch_dtype": "float32",
}
_SMALLEST_BLOCK = 32
"""The CPU platform wants a multiple of it for its kernels; there are none here."""


def bare_config(*, overlap: bool, block_size: int = _SMALLEST_BLOCK, **engine: Any) -> VllmConfig:
    """vLLM's configuration for a model that is a config file only; ``engine`` are flags by their own names.

    ``overlap`` plans a step while another runs. The CPU platform switches that off; a scheduler without a device has
    no reason to.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(_MODEL), encoding="utf-8")
        config = EngineArgs(
            model=folder,
            skip_tokenizer_init=True,
            block_size=_SMALLEST_BLOCK,
            enforce_eager=True,
            kv_cache_memory_bytes=1 << 20,
            **engine,
        ).create_engine_config()
    config.cache_config.block_size = block_size
    config.scheduler_config.async_scheduling = overlap
    return config


def bare_spec(block_size: int) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=64, dtype=torch.float32)


def bare_scheduler(make: SchedulerFactory, config: VllmConfig, blocks: int, *, log_stats: bool = False) -> Scheduler:
    """A scheduler over a pool of ``blocks`` usable blocks."""
    block_size = config.cache_config.block_size
    spec = bare_spec(block_size)
    # One block more: vLLM keeps block 0 for itself.
    pool = KVCacheConfig(
        num_blocks=blocks + 1, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )
    config.cache_config.num_gpu_blocks = pool.num_blocks
    return make(
        vllm_config=config,
        kv_cache_config=pool,
        structured_output_manager=StructuredOutputManager(config),
        block_size=block_size,
        log_stats=log_stats,
    )


def block_hasher(block_size: int) -> Any:
    """What gives requests the hashes of their blocks, for the prefix cache."""
    hash_function = get_hash_fn_by_name("sha256")
    init_none_hash(hash_function)
    return get_request_block_hasher(block_size, hash_function)
