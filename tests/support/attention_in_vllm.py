"""Generate with vLLM's own attention and with our backend, and compare: `attention_in_vllm.py MODEL`.

On CPU (TRITON_INTERPRET=1) vLLM does not offer `--attention-backend`, so its entry `CPU_ATTN` is overridden, and the
references are run as well. On CUDA the backend is chosen by name, also with CUDA graphs, and with the asynchronous
Proxima scheduler while requests yield their blocks, compute again or are swapped. One process runs all arms; the engine
lives in it, too. Prints the results as JSON; ends with 1 if an arm's answers are not those of the first one.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
}

import torch
from vllm import LLM, EngineArgs, SamplingParams
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown
from vllm.distributed.parallel_state import cleanup_dist_env_and_memory
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.attention.selector import _cached_get_attn_backend

from proxima_engine.plugin import register_attention_backend
from proxima_engine.swap.setup import CONNECTOR, CONNECTOR_MODULE, HOST_BYTES

KERNELS = "proxima_engine.attention_backend.ProximaAttentionBackend"
REFERENCES = "reference_backend.ReferenceBackend"
SPECULATIVE = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}}
GRAPHS = {"enforce_eager": False, "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}}
RESTLESS = {"scheduler_cls": "restless_scheduler.restless_scheduler", "enable_prefix_caching": False}
SWAP = {
    "kv_transfer_config": KVTransferConfig(
        kv_connector=CONNECTOR,
        kv_connector_module_path=CONNECTOR_MODULE,
        kv_role="kv_producer",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={HOST_BYTES: 100_000_000},
    )
}
ASYNC = {"async_scheduling": True}
# name -> (what takes the place of CPU_ATTN, arguments of the engine)
CPU_ARMS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "native": (None, {}),
    "references, swapped": (REFERENCES, RESTLESS | SWAP),
    "kernels, speculative": (KERNELS, SPECULATIVE),
}
OURS = {"attention_backend": "PROXIMA"}
CUDA_ARMS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "native": (None, {"attention_backend": "TRITON_ATTN"}),
    "kernels": (None, OURS),
    "kernels, speculative": (None, OURS | SPECULATIVE),
    "kernels, CUDA graphs": (None, OURS | GRAPHS),
    "kernels, preempted": (None, OURS | RESTLESS | ASYNC),
    "kernels, swapped": (None, OURS | RESTLESS | ASYNC | SWAP | GRAPHS),
}
# Ragged lengths; two share a prefix of several blocks; the longest are cut into chunks by the step's 96 tokens.
PREFIX = [3 + i % 200 for i in range(70)]
PROMPTS = [
    [5],
    [7, 8, 9] * 8,
    [*PREFIX, 11, 12],
    [*PREFIX, 90, 17, 18],
    [3 + (i * i) % 200 for i in range(150)],
]


def generate(model: str, **engine: Any) -> dict[str, Any]:
    defaults = {"enforce_eager": True, "num_gpu_blocks_override": 64, "enable_prefix_caching": True}
    llm = LLM(
        model=model,
        dtype="float32",
        max_model_len=256,
        block_size=32,
        max_num_seqs=4,
        max_num_batched_tokens=96,
        disable_log_stats=True,
        **(defaults | engine),
    )
    config = llm.llm_engine.vllm_config
    layers = {type(layer.impl).__name__ for layer in config.compilation_config.static_forward_context.values()}
    sampling = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=0)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], sampling, use_tqdm=False)
    texts = [list(output.outputs[0].token_ids) for output in outputs]
    logprobs = [
        [step[token].logprob for step, token in zip(output.outputs[0].logprobs, tokens, strict=True)]
        for output, tokens in zip(outputs, texts, strict=True)
    ]
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    swap = getattr(scheduler, "proxima_swap", None)
    return {
        "layers": sorted(layers),
        "tokens": texts,
        "logprobs": logprobs,
        "asynchronous": config.scheduler_config.async_scheduling,
        "yields": getattr(getattr(scheduler, "proxima_policy", None), "yields", 0),
        "loaded_blocks": swap.counters.blocks_in if swap is not None else 0,
        "stored_ahead_blocks": swap.ledger.blocks_used_of_ahead if swap is not None else 0,
        "fetched_blocks": swap.counters.blocks_found_fetched if swap is not None else 0,
    }


def same(mine: dict[str, Any], native: dict[str, Any], *, exact: bool) -> bool:
    """Whether answers are the same. On CUDA, where sums are rounded otherwise, up to a token that is as likely as
    another."""
    near = 1e-3 if exact else 2e-2
    answers = (mine["tokens"], native["tokens"], mine["logprobs"], native["logprobs"])
    for answer in zip(*answers, strict=True):
        for token, other, logprob, other_logprob in zip(*answer, strict=True):
            if abs(logprob - other_logprob) > near or (exact and token != other):
                return False
            if token != other:
                break
    return True


def failures(results: dict[str, dict[str, Any]], *, on_cuda: bool) -> Iterator[str]:
    for arm, result in results.items():
        if not same(result, results["native"], exact=not on_cuda):
            yield f"{arm}: other answers than native"
        if "preempted" in arm and not result["yields"]:
            yield f"{arm}: nobody yielded"
        if "swapped" in arm and not result["loaded_blocks"]:
            yield f"{arm}: nothing was loaded"
        if "swapped" in arm and not result["stored_ahead_blocks"]:
            yield f"{arm}: nothing was stored ahead of a yield"
        if "swapped" in arm and on_cuda and not result["fetched_blocks"]:
            yield f"{arm}: nothing was fetched ahead of a resumption"


def main(model: str) -> int:
    # A foreign Python has not installed our entry points.
    register_attention_backend()
    on_cuda = torch.cuda.is_available()
    for _, engine in CUDA_ARMS.values():
        # So that a wrong argument is found where there is no GPU.
        EngineArgs(model=model, **engine)
    results: dict[str, dict[str, Any]] = {}
    for arm, (backend, engine) in (CUDA_ARMS if on_cuda else CPU_ARMS).items():
        if backend is not None:
            register_backend(AttentionBackendEnum.CPU_ATTN, backend)
            _cached_get_attn_backend.cache_clear()
        results[arm] = generate(model, **engine)
        ensure_kv_transfer_shutdown()
        gc.collect()
        cleanup_dist_env_and_memory()
    sys.stdout.write("RESULT " + json.dumps(results) + "\n")
    found = list(failures(results, on_cuda=on_cuda))
    for failure in found:
        sys.stderr.write(f"attention_in_vllm: {failure}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
