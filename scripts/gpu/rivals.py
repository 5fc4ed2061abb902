"""What our kernels are timed against, each as a function that prepares a problem and returns the call to time.

Preparation (plans, gathering, conversion to the layout that a library wants) is not timed. A library that is not
installed raises ImportError, one that cannot do the shape ValueError: the table then says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from problems import Problem

Call = Callable[[], Any]
MAX_GATHERED_BYTES = 16 << 30


def slots_first(problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values as (blocks, block_size, kv_heads, head_size) views, which vLLM's Triton kernel takes."""
    return problem.cache.key.transpose(1, 2), problem.cache.value.transpose(1, 2)


def vllm_triton(problem: Problem) -> Call:
    """vLLM's own Triton kernel, with the buffers for split rows that its backend gives it."""
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention
    from vllm.v1.kv_cache_interface import KVQuantMode

    shape, (key, value) = problem.shape, slots_first(problem)
    segments, rows = 16, 128 // shape.kv_heads
    part = {"dtype": torch.float32, "device": problem.query.device}
    one = torch.ones(len(shape.lengths), shape.kv_heads, **part)
    buffers = {
        "softmax_segm_output": torch.empty(rows, shape.heads, segments, shape.head_size, **part),
        "softmax_segm_max": torch.empty(rows, shape.heads, segments, **part),
        "softmax_segm_expsum": torch.empty(rows, shape.heads, segments, **part),
    }
    out = problem.out
    return lambda: unified_attention(
        q=problem.query,
        k=key,
        v=value,
        out=out,
        cu_seqlens_q=problem.query_start_loc,
        max_seqlen_q=shape.query_len,
        seqused_k=problem.seq_lens,
        max_seqlen_k=max(shape.lengths),
        softmax_scale=problem.options.scale,
        causal=True,
        window_size=(-1, -1),
        block_table=problem.block_table,
        softcap=0,
        q_descale=None,
        k_descale=one,
        v_descale=one,
        seq_threshold_3D=rows,
        num_par_softmax_segments=segments,
        kv_quant_mode=KVQuantMode.FP8_PER_TENSOR if shape.cache_dtype else KVQuantMode.NONE,
        **buffers,
    )


def flash_attention(problem: Problem) -> Call:
    """FlashAttention over the paged cache: vLLM's build of it, or the `flash_attn` package."""
    if problem.shape.cache_dtype:
        raise ValueError("fp8 needs scales and queries in its own form")
    key, value = (part.contiguous() for part in slots_first(problem))
    try:
        from vllm.vllm_flash_attn import flash_attn_varlen_func as varlen

        arguments: dict[str, Any] = {"seqused_k": problem.seq_lens, "out": problem.out}
    except ImportError:
        from flash_attn import flash_attn_varlen_func as varlen

        ends = torch.nn.functional.pad(problem.seq_lens.cumsum(0), (1, 0)).to(torch.int32)
        arguments = {"cu_seqlens_k": ends}
    return lambda: varlen(
        problem.query,
        key,
        value,
        max_seqlen_q=problem.shape.query_len,
        cu_seqlens_q=problem.query_start_loc,
        max_seqlen_k=max(problem.shape.lengths),
        softmax_scale=problem.options.scale,
        causal=True,
        block_table=problem.block_table,
        **arguments,
    )


def flashinfer(problem: Problem) -> Call:
    """FlashInfer, planned once for the shape as vLLM plans a step."""
    import flashinfer as library

    shape, device = problem.shape, problem.query.device
    pages = [-(-length // shape.block_size) for length in shape.lengths]
    indptr = torch.tensor([0, *pages], device=device).cumsum(0).to(torch.int32)
    indices = torch.cat([row[:count] for row, count in zip(problem.block_table, pages, strict=True)])
    last = ((problem.seq_lens - 1) % shape.block_size + 1).to(torch.int32)
    key, value = problem.cache.key.contiguous(), problem.cache.value.contiguous()
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device=device)
    heads = (shape.heads, shape.kv_heads, shape.head_size, shape.block_size)
    types = {"q_data_type": shape.dtype, "kv_data_type": problem.storage.dtype}
    if shape.query_len == 1:
        decode = library.BatchDecodeWithPagedKVCacheWrapper(workspace, "HND", use_tensor_cores=True)
        decode.plan(indptr, indices, last, *heads, **types)
        return lambda: decode.run(problem.query, (key, value))
    prefill = library.BatchPrefillWithPagedKVCacheWrapper(workspace, "HND")
    prefill.plan(problem.query_start_loc, indptr, indices, last, *heads, causal=True, **types)
    return lambda: prefill.run(problem.query, (key, value))


def sdpa(problem: Problem) -> Call:
    """PyTorch's own attention over keys and values gathered and padded beforehand: what paging has to beat."""
    shape = problem.shape
    rows, longest = len(shape.lengths), max(shape.lengths)
    if rows * longest * shape.kv_heads * shape.head_size * 2 * shape.dtype.itemsize > MAX_GATHERED_BYTES:
        raise ValueError("padded to the longest row, it does not fit")
    table = problem.block_table.long()
    gathered = [
        part[table].to(shape.dtype).transpose(1, 2).reshape(rows, shape.kv_heads, -1, shape.head_size)[:, :, :longest]
        for part in (problem.cache.key, problem.cache.value)
    ]
    query = problem.query.reshape(rows, shape.query_len, shape.heads, shape.head_size).transpose(1, 2)
    positions = torch.arange(longest, device=query.device)
    own = problem.seq_lens[:, None] - shape.query_len + torch.arange(shape.query_len, device=query.device)
    mask = (positions <= own[..., None])[:, None]
    options = {"attn_mask": mask, "scale": problem.options.scale, "enable_gqa": shape.heads != shape.kv_heads}
    return lambda: torch.nn.functional.scaled_dot_product_attention(query, *gathered, **options)


RIVALS: dict[str, Callable[[Problem], Call]] = {
    "vLLM Triton": vllm_triton,
    "FlashAttention": flash_attention,
    "FlashInfer": flashinfer,
    "SDPA, gathered": sdpa,
}
