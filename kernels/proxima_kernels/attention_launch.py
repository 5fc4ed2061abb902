"""Checks and launch that decode and prefill share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

from proxima_kernels.arguments import (
    FLOATS,
    check_device,
    check_dtype,
    check_indices,
    check_rows_dense,
    check_runnable,
    check_shape,
)
from proxima_kernels.attention_kernel import attention_kernel
from proxima_kernels.attention_options import AttentionOptions
from proxima_kernels.cache import PagedCache
from proxima_kernels.configs import AttentionConfig
from proxima_kernels.launch import INTERPRETED, power_of_two, unit_scale

MAX_GROUP = 128
TYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


@dataclass(frozen=True)
class Batch:
    """Checked arguments of one attention call.

    Raises:
        ValueError, TypeError: naming the argument.
    """

    query: torch.Tensor  # (tokens, heads, head_size)
    out: torch.Tensor  # as query
    cache: PagedCache
    block_table: torch.Tensor  # (rows, blocks of a row)
    query_start_loc: torch.Tensor  # (rows + 1,)
    seq_lens: torch.Tensor  # (rows,)
    options: AttentionOptions
    rows: torch.Tensor | None = None  # (chosen rows,)

    def __post_init__(self) -> None:
        query, device = self.query, self.query.device
        check_dtype("query", query, FLOATS)
        check_shape("query", query, ["tokens", "heads", self.cache.head_size])
        check_runnable("query", query, interpreted=INTERPRETED)
        check_rows_dense("query", query)
        check_dtype("out", self.out, FLOATS)
        check_shape("out", self.out, query.shape)
        check_device("out", self.out, device)
        check_rows_dense("out", self.out)
        check_device("key_cache", self.cache.key, device)
        if self.cache.kind == "same":
            check_dtype("key_cache", self.cache.key, [query.dtype])
        if self.heads % self.cache.kv_heads or self.group > MAX_GROUP:
            raise ValueError(
                f"query has {self.heads} heads: must be 1 to {MAX_GROUP} times the {self.cache.kv_heads} KV heads"
            )
        check_dtype("seq_lens", self.seq_lens, [torch.int32, torch.int64])
        count = int(self.seq_lens.shape[0])
        check_indices("seq_lens", self.seq_lens, [count], device)
        check_indices("query_start_loc", self.query_start_loc, [count + 1], device)
        check_dtype("block_table", self.block_table, [torch.int32])
        check_shape("block_table", self.block_table, [count, "blocks"])
        check_device("block_table", self.block_table, device)
        check_rows_dense("block_table", self.block_table)
        if self.rows is not None:
            check_dtype("rows", self.rows, [torch.int32])
            check_indices("rows", self.rows, ["rows"], device)
        self.options.check(self.heads, device)

    @property
    def heads(self) -> int:
        return int(self.query.shape[1])

    @property
    def group(self) -> int:
        return self.heads // self.cache.kv_heads


@dataclass(frozen=True)
class NewTokens:
    """Keys and values that the launch stores as well."""

    key: torch.Tensor
    value: torch.Tensor
    slot_mapping: torch.Tensor


def launch_attention(
    batch: Batch,
    items: torch.Tensor,
    config: AttentionConfig,
    *,
    tile: int,
    tiles: int,
    query_max: int,
    partial: tuple[torch.Tensor, torch.Tensor] | None = None,
    new: NewTokens | None = None,
) -> None:
    """One launch over `items`: `tile` query tokens a program and `tiles` programs an item."""
    cache, options, query = batch.cache, batch.options, batch.query
    key_scale, key_step, value_scale, value_step = cache.scales()
    scaled = key_scale is not None or value_scale is not None or cache.kind != "same"
    one = unit_scale(query.device) if scaled else query
    partial_out, partial_lse = partial if partial is not None else (batch.out, batch.out)
    new_key, new_value, slots = (new.key, new.value, new.slot_mapping) if new is not None else (query, query, items)
    attention_kernel[(cache.kv_heads, items.shape[1], tiles)](
        query,
        batch.out,
        partial_out,
        partial_lse,
        cache.key,
        cache.value,
        items,
        items.stride(0),
        batch.block_table,
        batch.block_table.stride(0),
        batch.query_start_loc,
        batch.seq_lens,
        query if options.alibi_slopes is None else options.alibi_slopes,
        one if key_scale is None else key_scale,
        one if value_scale is None else value_scale,
        new_key,
        new_value,
        slots,
        options.scale,
        options.soft_cap or 1.0,
        options.sliding_window or 0,
        *query.stride()[:2],
        *batch.out.stride()[:2],
        *cache.strides(),
        key_step,
        value_step,
        *new_key.stride()[:2],
        *new_value.stride()[:2],
        HEADS=batch.heads,
        GROUP=batch.group,
        HEAD_SIZE=cache.head_size,
        HEAD_TILE=power_of_two(cache.head_size),
        BLOCK_SIZE=cache.block_size,
        QUERY_TILE=tile,
        QUERY_MAX=query_max,
        M=max(16, power_of_two(tile * batch.group)),
        N=config.kv_tile,
        # The interpreter multiplies bfloat16 as the integers that carry it.
        DOT=tl.float32 if INTERPRETED else TYPES[query.dtype],
        KIND=cache.kind,
        SOFT_CAP=options.soft_cap is not None,
        ALIBI=options.alibi_slopes is not None,
        WINDOW=options.sliding_window is not None,
        SPLIT=partial is not None,
        WRITE=new is not None,
        SCALED=scaled,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
