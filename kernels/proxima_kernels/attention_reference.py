"""Attention over a paged cache in plain torch, at any precision, one request after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from proxima_kernels.attention_options import AttentionOptions
from proxima_kernels.cache import PagedCache
from proxima_kernels.kv_write_reference import quantise_reference


def paged_attention_reference(
    query: torch.Tensor,
    cache: PagedCache,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor,
    options: AttentionOptions,
    *,
    rows: Sequence[int] | None = None,
    precision: torch.dtype = torch.float64,
) -> torch.Tensor:
    """Write the attention of the chosen rows (all by default) to `out`, computed in `precision`.

    Shapes as in `paged_decode_attention`; a row may have any number of query tokens. Negative rows are padding.
    Tokens of other rows and of no row keep what `out` had.
    """
    starts = query_start_loc.tolist()
    for row in range(len(seq_lens)) if rows is None else rows:
        if row < 0 or starts[row + 1] == starts[row]:
            continue
        tokens = slice(starts[row], starts[row + 1])
        key, value = read_row(cache, block_table[row], int(seq_lens[row]), precision)
        out[tokens] = attend_reference(query[tokens].to(precision), key, value, options).to(out.dtype)
    return out


def paged_write_decode_reference(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cache: PagedCache,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    slot_mapping: torch.Tensor,
    out: torch.Tensor,
    options: AttentionOptions,
    *,
    rows: Sequence[int] | None = None,
    precision: torch.dtype = torch.float64,
) -> torch.Tensor:
    """Store the new keys and values of the chosen rows, then attend to them as the cache holds them."""
    starts, block_size = query_start_loc.tolist(), cache.block_size
    one = torch.ones(1)
    for row in range(len(seq_lens)) if rows is None else rows:
        for token in range(starts[row], starts[row + 1]) if row >= 0 else ():
            slot = int(slot_mapping[token])
            for new, target, scale in ((key, cache.key, cache.key_scale), (value, cache.value, cache.value_scale)):
                stored = quantise_reference(new[token : token + 1], one if scale is None else scale, target.dtype)
                if slot >= 0:
                    target[slot // block_size, :, slot % block_size] = stored[0]
    return paged_attention_reference(
        query, cache, block_table, query_start_loc, seq_lens, out, options, rows=rows, precision=precision
    )


def read_row(
    cache: PagedCache, blocks: torch.Tensor, length: int, precision: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of one request, (length, kv_heads, head_size), with their scales applied."""
    used = blocks[: -(-length // cache.block_size)].long()
    read = []
    for stored, scale in ((cache.key, cache.key_scale), (cache.value, cache.value_scale)):
        flat = stored[used].transpose(1, 2).reshape(-1, cache.kv_heads, cache.head_size)[:length].to(precision)
        read.append(flat if scale is None else flat * scale.to(precision).reshape(1, -1, 1))
    return read[0], read[1]


def attend_reference(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions
) -> torch.Tensor:
    """Causal attention of the last `len(query)` tokens of a sequence; zeros where a token sees nothing."""
    tokens, heads, _ = query.shape
    length = key.shape[0]
    group = heads // key.shape[1]
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    logits = torch.einsum("qhd,khd->hqk", query, key) * options.scale
    if options.soft_cap is not None:
        logits = options.soft_cap * torch.tanh(logits / options.soft_cap)
    positions = torch.arange(length, device=query.device)
    own = torch.arange(length - tokens, length, device=query.device)[:, None]
    if options.alibi_slopes is not None:
        logits = logits + options.alibi_slopes.to(logits.dtype)[:, None, None] * (positions - own).to(logits.dtype)
    seen = positions <= own
    if options.sliding_window is not None:
        seen &= positions > own - options.sliding_window
    weights = torch.softmax(logits.masked_fill(~seen, float("-inf")), dim=-1).nan_to_num(0.0)
    return torch.einsum("hqk,khd->qhd", weights, value)
