"""Settings that are each valid and together are known to fail, or to give wrong text.

What vLLM makes of a model is known only to vLLM. Here it is read from the model's config.json, where that is on this
machine, and what cannot be told is left to the start itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from proxima_config.errors import ConfigError
from proxima_engine import platform_cpu
from proxima_server.doctor.finding import Finding, blocker, ok
from proxima_server.doctor.subject import Subject

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_NAMES = {"float": "float32", "half": "float16"}
# Of the names that vLLM knows for a model's context, those of Llama and its kin and of GPT-2.
_CONTEXTS = ("max_position_embeddings", "n_positions")
# What else than full attention may keep in its blocks.
_OTHER_CACHES = ("kv_lora_rank", "sliding_window", "layer_types", "ssm_cfg", "attention_chunk_size")


def check_combinations(subject: Subject) -> Iterator[Finding]:
    problems = [*_on_cpu(subject), *_splits(subject), *_lengths(subject), *_options(subject)]
    yield from problems or [ok("none of those known to go wrong")]


def _on_cpu(subject: Subject) -> Iterator[Finding]:
    if not subject.on_cpu:
        return
    quantization = subject.flag("quantization")
    numerics = platform_cpu.Numerics(
        dtype=_dtype(subject),
        compiled=_compiled(subject),
        tensor_parallel_size=int(subject.number("tensor_parallel_size")),
        quantization=quantization if isinstance(quantization, str) else None,
    )
    try:
        platform_cpu.refuse_known_bad(numerics, frozenset())
    except ConfigError as error:
        message, _, remedy = str(error).partition("; ")
        yield blocker(message, remedy)
    flags = subject.hardware.cpu_flags
    if str(subject.flag("kv_cache_dtype")).startswith("fp8") and "sse2" in flags and "avx512f" not in flags:
        yield blocker("fp8 KV cache needs AVX-512, which this CPU has not", "leave --kv-cache-dtype out")
    if subject.number("pipeline_parallel_size") > 1:
        yield blocker("pipeline parallelism crashes in vLLM's build for CPUs", "--pipeline-parallel-size 1")
    if subject.flag("distributed_executor_backend") == "ray":
        yield blocker("Ray refuses vLLM's build for CPUs", "--distributed-executor-backend mp")
    if subject.number("block_size") % 32:
        yield blocker("attention on a CPU needs blocks of a multiple of 32 tokens", "--block-size 32")


def _splits(subject: Subject) -> Iterator[Finding]:
    ranks, heads = int(subject.number("tensor_parallel_size")), subject.model_config.get("num_attention_heads")
    if isinstance(heads, int) and heads % ranks:
        fit = [str(count) for count in range(1, heads + 1) if heads % count == 0]
        yield blocker(
            f"the model's {heads} attention heads cannot be split over {ranks} ranks",
            f"--tensor-parallel-size {', '.join(fit[:-1])} or {fit[-1]}",
        )


def _lengths(subject: Subject) -> Iterator[Finding]:
    contexts = [subject.model_config.get(name) for name in _CONTEXTS]
    context = min((each for each in contexts if isinstance(each, int)), default=None)
    asked = subject.flag("max_model_len")
    length = asked if isinstance(asked, int) and asked > 0 else context
    if subject.max_model_len_bound is not None and context is not None:
        length = min(subject.max_model_len_bound, context)
    if not isinstance(length, int):
        return
    stretched = any(subject.model_config.get(key) for key in ("rope_scaling", "rope_parameters"))
    pool = _pool_tokens(subject)
    if context is not None and length > context and not stretched and not subject.flag("hf_overrides"):
        small = pool is not None and pool < context
        yield blocker(
            f"--max-model-len {length} is more than the {context} tokens the model was made for",
            f"--max-model-len {pool}, which is what the KV pool holds" if small else f"--max-model-len {context}",
        )
    # -1 is `auto`: vLLM then takes what fits.
    elif asked != -1 and pool is not None and pool < length:
        yield blocker(
            f"the KV pool holds {pool} tokens, one request may have {length}",
            f"--max-model-len {pool}, or a larger pool (--kv-cache-memory-bytes, --num-gpu-blocks-override)",
        )


def _options(subject: Subject) -> Iterator[Finding]:
    if subject.flag("speculative_config") and subject.flag("logits_processors"):
        yield blocker(
            "vLLM has no custom logits processors together with speculative decoding", "leave one of them out"
        )


def _pool_tokens(subject: Subject) -> int | None:
    """Tokens that fit into the KV pool; None where vLLM measures it, or the model is not plain enough to tell."""
    block = int(subject.number("block_size")) or (128 if subject.on_cpu else 16)
    if blocks := int(subject.number("num_gpu_blocks_override")):
        # One block is never handed out.
        return (blocks - 1) * block
    available, per_token = subject.number("kv_cache_memory_bytes"), _bytes_per_token(subject)
    if not available or not per_token:
        return None
    return (int(available / (per_token * block)) - 1) * block


def _bytes_per_token(subject: Subject) -> float | None:
    model: dict[str, Any] = subject.model_config
    if any(model.get(key) for key in _OTHER_CACHES):
        return None
    layers, heads = model.get("num_hidden_layers"), model.get("num_attention_heads")
    hidden, kv_heads = model.get("hidden_size"), model.get("num_key_value_heads", heads)
    if not (
        isinstance(layers, int) and isinstance(kv_heads, int) and isinstance(heads, int) and isinstance(hidden, int)
    ):
        return None
    head_size = model.get("head_dim") or hidden // heads
    kind = str(subject.flag("kv_cache_dtype"))
    size = 1 if kind.startswith("fp8") else _BYTES.get(_dtype(subject) if kind == "auto" else kind)
    return size and 2 * layers * kv_heads * head_size * size / subject.number("tensor_parallel_size")


def _dtype(subject: Subject) -> str:
    """What `auto` becomes, as vLLM does it: models of float32 are computed in the platform's first type."""
    dtype = str(subject.flag("dtype"))
    if dtype == "auto":
        model = subject.model_config
        dtype = str(model.get("dtype") or model.get("torch_dtype") or "float32")
        dtype = "bfloat16" if dtype == "float32" else dtype
    return _NAMES.get(dtype, dtype)


def _compiled(subject: Subject) -> bool:
    if subject.flag("enforce_eager") or subject.flag("optimization_level") in (0, "0", "O0"):
        return False
    config = subject.flag("compilation_config")
    return not (isinstance(config, dict) and config.get("mode") in (0, "NONE", "none"))
