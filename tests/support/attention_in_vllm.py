"""Generate with vLLM's own attention and with our backend, and compare: `attention_in_vllm.py MODEL`.

On CPU (TRITON_INTERPRET=1) vLLM does not offer `--attention-backend`, so its entry `CPU_ATTN` is overridden, and the
references are run as well. On CUDA the backend is chosen by name, with CUDA graphs, and under preemption with the
asynchronous Proxima scheduler. One process runs all arms; the engine lives in it, too. Prints the results as JSON; ends
with 1 if an arm's tokens differ from the first one's.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from typing import Any

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
}

import torch
from vllm import LLM, SamplingParams
from vllm.distributed.parallel_state import cleanup_dist_env_and_memory
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.attention.selector import _cached_get_attn_backend

KERNELS = "proxima_engine.attention_backend.ProximaAttentionBackend"
REFERENCES = "reference_backend.ReferenceBackend"
SPECULATIVE = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}}
GRAPHS = {"enforce_eager": False, "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}}
SCARCE = {
    "num_gpu_blocks_override": 13,
    "async_scheduling": True,
    "scheduler_cls": "proxima_engine.scheduler.select_scheduler",
}
# name -> (what takes the place of CPU_ATTN, arguments of the engine)
CPU_ARMS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "native": (None, {}),
    "references": (REFERENCES, {}),
    "kernels, speculative": (KERNELS, SPECULATIVE),
}
OURS = {"attention_backend": "PROXIMA"}
CUDA_ARMS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "native": (None, {"attention_backend": "TRITON_ATTN"}),
    "kernels": (None, OURS),
    "kernels, speculative": (None, OURS | SPECULATIVE),
    "kernels, CUDA graphs": (None, OURS | GRAPHS),
    "kernels, preempted": (None, OURS | SCARCE),
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
    defaults = {"enforce_eager": True, "num_gpu_blocks_override": 64}
    llm = LLM(
        model=model,
        dtype="float32",
        max_model_len=256,
        block_size=32,
        max_num_seqs=4,
        max_num_batched_tokens=96,
        enable_prefix_caching=True,
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
    return {"layers": sorted(layers), "tokens": texts, "logprobs": logprobs}


def main(model: str) -> int:
    results = {}
    for arm, (backend, engine) in (CUDA_ARMS if torch.cuda.is_available() else CPU_ARMS).items():
        if backend is not None:
            register_backend(AttentionBackendEnum.CPU_ATTN, backend)
            _cached_get_attn_backend.cache_clear()
        results[arm] = generate(model, **engine)
        gc.collect()
        cleanup_dist_env_and_memory()
    sys.stdout.write("RESULT " + json.dumps(results) + "\n")
    differing = [arm for arm, result in results.items() if result["tokens"] != results["native"]["tokens"]]
    for arm in differing:
        sys.stderr.write(f"attention_in_vllm: {arm}: other tokens than native\n")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
