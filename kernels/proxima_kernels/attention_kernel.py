"""Jit code of attention over a paged cache: one kernel for decode and prefill, and the merge of split rows.

Decode and prefill differ only in their work items (`work_list.py`): decode splits long contexts, prefill splits long
queries. An item is a range of query tokens of a row and a range of key positions.
"""

from __future__ import annotations

import triton
import triton.language as tl

from proxima_kernels.kv_write_kernel import quantise

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def attend(
    q,  # (M, HEAD_TILE)
    k,  # (HEAD_TILE, N)
    v,  # (N, HEAD_TILE)
    seen,  # (M, N)
    distance,  # (M, N) key position - query position
    slopes,  # (M,)
    scale,
    soft_cap,
    maximum,  # (M,) running maximum of the logits, base 2
    total,  # (M,) running sum of the weights
    weighted,  # (M, HEAD_TILE) running sum of weight * value
    SOFT_CAP: tl.constexpr,
    ALIBI: tl.constexpr,
):
    """One step of the online softmax. A row that has seen nothing keeps maximum -inf, total 0 and weighted 0."""
    logits = tl.dot(q, k, input_precision="ieee") * scale
    if SOFT_CAP:
        # tanh through exp2 of a negative number, which cannot overflow.
        decay = tl.exp2(tl.abs(logits) * (-2.0 * LOG2_E / soft_cap))
        logits = tl.where(logits < 0, -soft_cap, soft_cap) * (1.0 - decay) / (1.0 + decay)
    if ALIBI:
        logits += slopes[:, None] * distance.to(tl.float32)
    logits = tl.where(seen, logits * LOG2_E, float("-inf"))
    higher = tl.maximum(maximum, tl.max(logits, 1))
    # -inf - -inf is NaN: subtract 0 where nothing was seen yet.
    shift = tl.where(higher == float("-inf"), 0.0, higher)
    weights = tl.exp2(logits - shift[:, None])
    shrink = tl.exp2(maximum - shift)
    total = total * shrink + tl.sum(weights, 1)
    weighted = weighted * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    return higher, total, weighted


# What differs from step to step compiles once: a slice of rows begins anywhere, and lists are of any length.
@triton.jit(do_not_specialize=["items_stride", "block_table", "query_start_loc", "seq_lens", "slot_mapping"])
def attention_kernel(
    query,  # (tokens, heads, head_size)
    out,  # as query
    partial_out,  # (items, query tokens, heads, head_size) float32, for rows with several items
    partial_lse,  # (items, query tokens, heads) float32, base 2
    key_cache,  # (blocks, kv_heads, block_size, head_size)
    value_cache,
    items,  # (5, items) int32: row or -1, first query token, first key, end of keys, items of this row
    items_stride,
    block_table,  # (rows, blocks of a row) int32
    block_table_stride,
    query_start_loc,  # (rows + 1,)
    seq_lens,  # (rows,) query tokens included
    slopes_table,
    key_scale,
    value_scale,
    new_key,  # (tokens, kv_heads, head_size) where WRITE
    new_value,
    slot_mapping,
    scale,
    soft_cap,
    window,
    query_token_stride,
    query_head_stride,
    out_token_stride,
    out_head_stride,
    k_block_stride,
    k_head_stride,
    k_slot_stride,
    v_block_stride,
    v_head_stride,
    v_slot_stride,
    key_scale_stride,
    value_scale_stride,
    new_key_token_stride,
    new_key_head_stride,
    new_value_token_stride,
    new_value_head_stride,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads of a KV head
    HEAD_SIZE: tl.constexpr,
    HEAD_TILE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    QUERY_TILE: tl.constexpr,  # query tokens of a program
    QUERY_MAX: tl.constexpr,  # query tokens of an item
    M: tl.constexpr,  # rows of the tile: QUERY_TILE * GROUP and padding
    N: tl.constexpr,  # keys of a tile
    DOT: tl.constexpr,  # type that matrices are multiplied in
    KIND: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    ALIBI: tl.constexpr,
    WINDOW: tl.constexpr,
    SPLIT: tl.constexpr,
    WRITE: tl.constexpr,
    SCALED: tl.constexpr,
):
    """Program (KV head, item, query tile)."""
    kv_head = tl.program_id(0)
    item = tl.program_id(1)
    row = tl.load(items + item)
    if row < 0:
        return
    first_query = tl.load(items + items_stride + item) + tl.program_id(2) * QUERY_TILE
    first_key = tl.load(items + 2 * items_stride + item)
    end_key = tl.load(items + 3 * items_stride + item)
    query_start = tl.load(query_start_loc + row).to(tl.int64)
    query_len = (tl.load(query_start_loc + row + 1) - query_start).to(tl.int32)
    if first_query >= query_len:
        return
    length = tl.load(seq_lens + row).to(tl.int32)
    context = length - query_len

    lanes = tl.arange(0, M)
    in_row = first_query + lanes // GROUP
    head = kv_head * GROUP + lanes % GROUP
    alive = (lanes < QUERY_TILE * GROUP) & (in_row < query_len)
    dims = tl.arange(0, HEAD_TILE)
    inside = dims < HEAD_SIZE
    loadable = alive[:, None] & inside[None, :]
    q_offsets = (query_start + in_row)[:, None] * query_token_stride + head[:, None] * query_head_stride
    q = tl.load(query + q_offsets + dims[None, :], mask=loadable, other=0.0).to(DOT)
    own = context + in_row
    slopes = own.to(tl.float32)
    if ALIBI:
        slopes = tl.load(slopes_table + head, mask=alive, other=0.0)
    if SCALED:
        scale *= tl.load(key_scale + kv_head * key_scale_stride)

    maximum = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    weighted = tl.zeros([M, HEAD_TILE], tl.float32)

    begin = first_key
    if WINDOW:
        # The work list may have been made for a layer without a window; skip whole tiles only.
        outside = tl.maximum(context + first_query - window + 1 - first_key, 0)
        begin += outside // N * N
    cached_end = end_key
    if WRITE:
        cached_end = tl.minimum(end_key, context)
    table = block_table + row.to(tl.int64) * block_table_stride
    for tile in range(begin, cached_end, N):
        position = tile + tl.arange(0, N)
        exists = position < cached_end
        block = tl.load(table + position // BLOCK_SIZE, mask=exists, other=0).to(tl.int64)
        slot = position % BLOCK_SIZE
        k_offsets = block * k_block_stride + kv_head * k_head_stride + slot * k_slot_stride
        v_offsets = block * v_block_stride + kv_head * v_head_stride + slot * v_slot_stride
        k = tl.load(key_cache + k_offsets[None, :] + dims[:, None], mask=exists[None, :] & inside[:, None], other=0.0)
        v = tl.load(value_cache + v_offsets[:, None] + dims[None, :], mask=exists[:, None] & inside[None, :], other=0.0)
        distance = position[None, :] - own[:, None]
        seen = exists[None, :] & (distance <= 0) & alive[:, None]
        if WINDOW:
            seen = seen & (distance > -window)
        maximum, total, weighted = attend(
            q, k.to(DOT), v.to(DOT), seen, distance, slopes, scale, soft_cap, maximum, total, weighted, SOFT_CAP, ALIBI
        )

    if WRITE:
        # The new tokens never come back from the cache: no barrier between writing and reading is needed.
        fresh = tl.arange(0, 16)
        position = context + fresh
        mine = (fresh < query_len) & (position >= first_key) & (position < end_key)
        token = query_start + fresh
        nk_offsets = token * new_key_token_stride + kv_head * new_key_head_stride
        nv_offsets = token * new_value_token_stride + kv_head * new_value_head_stride
        usable = mine[:, None] & inside[None, :]
        k = tl.load(new_key + nk_offsets[:, None] + dims[None, :], mask=usable, other=0.0)
        v = tl.load(new_value + nv_offsets[:, None] + dims[None, :], mask=usable, other=0.0)
        if KIND != "same":
            k = quantise(k.to(tl.float32), tl.load(key_scale + kv_head * key_scale_stride), KIND)
            v = quantise(v.to(tl.float32), tl.load(value_scale + kv_head * value_scale_stride), KIND)
        if tl.program_id(2) == 0:
            place = tl.load(slot_mapping + token, mask=mine, other=-1).to(tl.int64)
            block = place // BLOCK_SIZE
            slot = place % BLOCK_SIZE
            k_offsets = block * k_block_stride + kv_head * k_head_stride + slot * k_slot_stride
            v_offsets = block * v_block_stride + kv_head * v_head_stride + slot * v_slot_stride
            kept = usable & (place >= 0)[:, None]
            tl.store(key_cache + k_offsets[:, None] + dims[None, :], k.to(key_cache.dtype.element_ty), mask=kept)
            tl.store(value_cache + v_offsets[:, None] + dims[None, :], v.to(value_cache.dtype.element_ty), mask=kept)
        distance = position[None, :] - own[:, None]
        seen = mine[None, :] & (distance <= 0) & alive[:, None]
        if WINDOW:
            seen = seen & (distance > -window)
        maximum, total, weighted = attend(
            q,
            tl.trans(k.to(DOT)),
            v.to(DOT),
            seen,
            distance,
            slopes,
            scale,
            soft_cap,
            maximum,
            total,
            weighted,
            SOFT_CAP,
            ALIBI,
        )

    result = weighted / tl.where(total == 0.0, 1.0, total)[:, None]
    if SCALED:
        result *= tl.load(value_scale + kv_head * value_scale_stride)
    direct = True
    if SPLIT:
        direct = tl.load(items + 4 * items_stride + item) == 1
        if not direct:
            place = (item.to(tl.int64) * QUERY_MAX + in_row) * HEADS + head
            tl.store(partial_out + place[:, None] * HEAD_SIZE + dims[None, :], result, mask=loadable)
            # A part in which a token sees nothing has no weight in the merge.
            lse = tl.where(total == 0.0, float("-inf"), maximum + tl.log2(tl.where(total == 0.0, 1.0, total)))
            tl.store(partial_lse + place, lse, mask=alive)
    if direct:
        o_offsets = (query_start + in_row)[:, None] * out_token_stride + head[:, None] * out_head_stride
        tl.store(out + o_offsets + dims[None, :], result.to(out.dtype.element_ty), mask=loadable)


@triton.jit
def merge_kernel(
    out,  # (tokens, heads, head_size)
    partial_out,
    partial_lse,
    rows,  # (chosen rows,) int32, negative: padding
    first_item,  # (chosen rows,) int32
    item_count,  # (chosen rows,) int32
    query_start_loc,
    out_token_stride,
    out_head_stride,
    HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    HEAD_TILE: tl.constexpr,
    QUERY_MAX: tl.constexpr,
    PARTS: tl.constexpr,  # parts of a tile
):
    """Program (chosen row, query token, head): zeros for a row without items, nothing to do for a row with one."""
    chosen = tl.program_id(0)
    token = tl.program_id(1)
    head = tl.program_id(2)
    row = tl.load(rows + chosen)
    count = tl.load(item_count + chosen)
    if (row < 0) | (count == 1):
        return
    query_start = tl.load(query_start_loc + row).to(tl.int64)
    if token >= tl.load(query_start_loc + row + 1) - query_start:
        return
    first = tl.load(first_item + chosen).to(tl.int64)
    dims = tl.arange(0, HEAD_TILE)
    inside = dims < HEAD_SIZE
    # Finite, so that a tile of parts without weight does not give -inf - -inf.
    maximum = -1.0e30
    total = 0.0
    weighted = tl.zeros([HEAD_TILE], tl.float32)
    for start in range(0, count, PARTS):
        part = start + tl.arange(0, PARTS)
        exists = part < count
        place = ((first + part) * QUERY_MAX + token) * HEADS + head
        lse = tl.load(partial_lse + place, mask=exists, other=float("-inf"))
        parts = tl.load(
            partial_out + place[:, None] * HEAD_SIZE + dims[None, :], mask=exists[:, None] & inside[None, :], other=0.0
        )
        higher = tl.maximum(maximum, tl.max(lse, 0))
        weights = tl.exp2(lse - higher)
        shrink = tl.exp2(maximum - higher)
        total = total * shrink + tl.sum(weights, 0)
        weighted = weighted * shrink + tl.sum(weights[:, None] * parts, 0)
        maximum = higher
    result = weighted / tl.where(total == 0.0, 1.0, total)
    target = out + (query_start + token) * out_token_stride + head * out_head_stride + dims
    tl.store(target, result.to(out.dtype.element_ty), mask=inside)
