"""Decode attention: 1 to 8 query tokens a request over a paged cache."""

from __future__ import annotations

import torch

from proxima_kernels.attention_kernel import merge_kernel
from proxima_kernels.attention_launch import Batch, NewTokens, launch_attention
from proxima_kernels.attention_options import AttentionOptions
from proxima_kernels.cache import PagedCache
from proxima_kernels.configs import AttentionConfig, config_for
from proxima_kernels.kv_write import check_new_kv
from proxima_kernels.launch import multiprocessors, power_of_two
from proxima_kernels.work_list import DecodeWorkspace

MAX_QUERY_LEN = 8
MERGED_PARTS = 16


def paged_decode_attention(
    query: torch.Tensor,
    cache: PagedCache,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor,
    options: AttentionOptions,
    *,
    query_start_loc: torch.Tensor | None = None,
    max_query_len: int = 1,
    rows: torch.Tensor | None = None,
    workspace: DecodeWorkspace | None = None,
    config: AttentionConfig | None = None,
) -> torch.Tensor:
    """Causal attention of each row's last tokens, written to `out` and returned.

    query, out: (tokens, heads, head_size). Row r has tokens query_start_loc[r] to query_start_loc[r + 1], at most
        `max_query_len`; without `query_start_loc` each row has one. Tokens of no chosen row keep what `out` had.
    block_table: (rows, blocks), int32. Entries beyond a row's length are never read.
    seq_lens: (rows,), the query tokens included; a row of length 0 gives zeros.
    rows: (chosen,), int32: attend for these rows only; negative ones are padding. All rows by default.
    workspace: filled for these rows and lengths (`decode_workspace`, then `fill`); made and filled here by default.
        One serves all layers of a step.

    Raises:
        ValueError, TypeError: naming the argument.
    """
    if query_start_loc is None:
        query_start_loc = torch.arange(seq_lens.shape[0] + 1, dtype=torch.int32, device=seq_lens.device)
    batch = Batch(query, out, cache, block_table, query_start_loc, seq_lens, options, rows)
    return _decode(batch, max_query_len, workspace, config, None)


def paged_write_decode_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cache: PagedCache,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    slot_mapping: torch.Tensor,
    out: torch.Tensor,
    options: AttentionOptions,
    *,
    query_start_loc: torch.Tensor | None = None,
    max_query_len: int = 1,
    rows: torch.Tensor | None = None,
    workspace: DecodeWorkspace | None = None,
    config: AttentionConfig | None = None,
) -> torch.Tensor:
    """`write_kv` and `paged_decode_attention` in one launch: new keys and values go from registers to both.

    Only tokens of chosen rows are stored. A token whose slot is negative is not stored, and is attended to as given.
    """
    if query_start_loc is None:
        query_start_loc = torch.arange(seq_lens.shape[0] + 1, dtype=torch.int32, device=seq_lens.device)
    batch = Batch(query, out, cache, block_table, query_start_loc, seq_lens, options, rows)
    check_new_kv(key, value, cache, slot_mapping)
    if key.dtype != query.dtype:
        raise TypeError(f"key is {key.dtype}: must be {query.dtype}, as query is")
    return _decode(batch, max_query_len, workspace, config, NewTokens(key, value, slot_mapping))


def decode_workspace(
    rows: int,
    max_query_len: int,
    heads: int,
    kv_heads: int,
    head_size: int,
    dtype: torch.dtype,
    device: torch.device,
    config: AttentionConfig | None = None,
) -> DecodeWorkspace:
    """A workspace for up to `rows` rows, whose work list aims at filling the device; `dtype` is the query's."""
    config = config or config_for("decode", dtype, head_size, heads // kv_heads, device)
    target = max(1, multiprocessors(device) * config.items_per_multiprocessor // kv_heads)
    return DecodeWorkspace.allocate(
        rows,
        max_query_len,
        heads,
        head_size,
        device,
        target_items=target,
        min_keys=config.min_keys,
        kv_tile=config.kv_tile,
    )


def _lanes(batch: Batch, max_query_len: int, config: AttentionConfig) -> int:
    """More than configured for the tokens of a verification step, so that keys and values are read once for all of
    them, as long as their sums fit the registers of four warps."""
    if batch.query.dtype == torch.float32 or batch.cache.head_size > 128:
        return config.lanes
    return max(config.lanes, min(power_of_two(batch.group * max_query_len), 32))


def _decode(
    batch: Batch,
    max_query_len: int,
    workspace: DecodeWorkspace | None,
    config: AttentionConfig | None,
    new: NewTokens | None,
) -> torch.Tensor:
    if not 1 <= max_query_len <= MAX_QUERY_LEN:
        raise ValueError(f"max_query_len is {max_query_len}: must be 1 to {MAX_QUERY_LEN}")
    cache, device = batch.cache, batch.query.device
    config = config or config_for("decode", batch.query.dtype, cache.head_size, batch.group, device)
    chosen = int((batch.seq_lens if batch.rows is None else batch.rows).shape[0])
    if chosen == 0:
        return batch.out
    if workspace is None:
        workspace = decode_workspace(
            chosen,
            max_query_len,
            batch.heads,
            cache.kv_heads,
            cache.head_size,
            batch.query.dtype,
            device,
            config,
        )
        workspace.fill(batch.query_start_loc, batch.seq_lens, rows=batch.rows, window=batch.options.sliding_window)
    query_max = int(workspace.partial_out.shape[1])
    if max_query_len > query_max:
        raise ValueError(f"max_query_len is {max_query_len}: must be at most {query_max}, as the workspace has")
    lanes = _lanes(batch, max_query_len, config)
    tile = max(1, min(lanes // batch.group, max_query_len))
    launch_attention(
        batch,
        # Rows beyond the chosen ones have no items, so the grid may be cut to what this batch can have.
        workspace.items[:, : chosen + workspace.target_items],
        config,
        tile=tile,
        tiles=-(-max_query_len // tile),
        query_max=query_max,
        partial=(workspace.partial_out, workspace.partial_lse),
        new=new,
    )
    merge_kernel[(chosen, max_query_len, batch.heads)](
        batch.out,
        workspace.partial_out,
        workspace.partial_lse,
        workspace.rows,
        workspace.first_item,
        workspace.item_count,
        batch.query_start_loc,
        *batch.out.stride()[:2],
        HEADS=batch.heads,
        HEAD_SIZE=cache.head_size,
        HEAD_TILE=power_of_two(cache.head_size),
        QUERY_MAX=query_max,
        PARTS=MERGED_PARTS,
        num_warps=2,
    )
    return batch.out
