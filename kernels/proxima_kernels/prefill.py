"""Prefill attention: chunks of prompts over a paged prefix."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from proxima_kernels.attention_launch import Batch, launch_attention
from proxima_kernels.attention_options import AttentionOptions
from proxima_kernels.cache import PagedCache
from proxima_kernels.configs import AttentionConfig, config_for
from proxima_kernels.work_list import prefill_items


@dataclass(frozen=True)
class PrefillWorkList:
    """Which query tokens of which row each program computes; one serves all layers of a step."""

    items: torch.Tensor  # (ITEM_FIELDS, items) int32
    query_tile: int  # query tokens of an item


def prefill_work_list(
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    heads: int,
    kv_heads: int,
    head_size: int,
    dtype: torch.dtype,
    *,
    rows: torch.Tensor | None = None,
    max_tokens: int,
    window: int | None = None,
    config: AttentionConfig | None = None,
) -> PrefillWorkList:
    """The work list of the chosen rows (all by default).

    `max_tokens` bounds their query tokens, `dtype` is the query's. A list that was
    made without a window serves layers with one too, not the other way round.
    """
    config = config or config_for("prefill", dtype, head_size, heads // kv_heads, seq_lens.device)
    if rows is None:
        rows = torch.arange(seq_lens.shape[0], dtype=torch.int32, device=seq_lens.device)
    # Whatever the number of tokens is: another tile is another kernel to compile.
    tile = max(1, config.lanes // (heads // kv_heads))
    items = prefill_items(
        query_start_loc,
        seq_lens,
        rows,
        max_tokens=max_tokens,
        query_tile=tile,
        kv_tile=config.kv_tile,
        window=window,
    )
    return PrefillWorkList(items, tile)


def paged_prefill_attention(
    query: torch.Tensor,
    cache: PagedCache,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor,
    options: AttentionOptions,
    *,
    rows: torch.Tensor | None = None,
    max_tokens: int | None = None,
    work_list: PrefillWorkList | None = None,
    config: AttentionConfig | None = None,
) -> torch.Tensor:
    """Causal attention of the last tokens of each row, whose keys and values are in the cache already.

    Arguments as in `paged_decode_attention`, with any number of query tokens a row. `max_tokens` bounds the query
    tokens of the chosen rows (default: all tokens of `query`); a bound that is too low leaves tokens out.
    work_list: of these rows (`prefill_work_list`, with the same config); made here by default.

    Raises:
        ValueError, TypeError: naming the argument.
    """
    batch = Batch(query, out, cache, block_table, query_start_loc, seq_lens, options, rows)
    tokens = int(query.shape[0]) if max_tokens is None else max_tokens
    chosen = int((seq_lens if rows is None else rows).shape[0])
    if tokens == 0 or chosen == 0:
        return out
    config = config or config_for("prefill", query.dtype, cache.head_size, batch.group, query.device)
    if work_list is None:
        work_list = prefill_work_list(
            query_start_loc,
            seq_lens,
            batch.heads,
            cache.kv_heads,
            cache.head_size,
            query.dtype,
            rows=rows,
            max_tokens=tokens,
            window=options.sliding_window,
            config=config,
        )
    tile = work_list.query_tile
    if tile * batch.group > config.lanes and tile > 1:
        raise ValueError(f"work_list has {tile} query tokens an item: must be at most {config.lanes // batch.group}")
    launch_attention(batch, work_list.items, config, tile=tile, tiles=1, query_max=tile)
    return out
