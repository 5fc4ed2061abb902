"""Jit code: quantise new keys and values and store them in their slots."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def round_to_grid(values, MANTISSA_BITS: tl.constexpr, LEAST_NORMAL: tl.constexpr):
    """float32 rounded, to even, to what a type with fewer bits can hold, so that the cast after it is exact.

    Casts to fp8 truncate under Triton's interpreter, and are not the same on all devices; the bytes in the cache
    shall be. Below the least normal number all steps are equal: adding and subtracting a large number rounds to them.
    """
    DROPPED: tl.constexpr = 23 - MANTISSA_BITS
    bits = values.to(tl.uint32, bitcast=True)
    bits += (1 << (DROPPED - 1)) - 1 + ((bits >> DROPPED) & 1)
    normal = (bits & (0xFFFFFFFF - ((1 << DROPPED) - 1))).to(tl.float32, bitcast=True)
    large = LEAST_NORMAL * 1.5 * (1 << DROPPED)
    return tl.where(tl.abs(values) < LEAST_NORMAL, (values + large) - large, normal)


@triton.jit
def quantise(values, scale, KIND: tl.constexpr):
    """float32 values / scale as the cache's type holds them, still in float32; KIND as in `cache.py`.

    int8 is rounded half up, as the reference does, so that both give the same bytes.
    """
    if KIND == "e4m3":
        values = round_to_grid(tl.minimum(tl.maximum(values / scale, -448.0), 448.0), 3, 0.015625)
    elif KIND == "e5m2":
        values = round_to_grid(tl.minimum(tl.maximum(values / scale, -57344.0), 57344.0), 2, 0.00006103515625)
    elif KIND == "int8":
        values = tl.minimum(tl.maximum(tl.floor(values / scale + 0.5), -128.0), 127.0)
    return values


# A slice of slots begins anywhere, and shall not compile again.
@triton.jit(do_not_specialize=["slot_mapping"])
def write_kv_kernel(
    key,  # (tokens, kv_heads, head_size)
    value,
    key_cache,  # (blocks, kv_heads, block_size, head_size), any strides but the last
    value_cache,
    slot_mapping,  # (tokens,) block * block_size + offset; negative: not stored
    key_scale,  # one float32, or one per head
    value_scale,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    k_block_stride,
    k_head_stride,
    k_slot_stride,
    v_block_stride,
    v_head_stride,
    v_slot_stride,
    key_scale_stride,
    value_scale_stride,
    HEAD_SIZE: tl.constexpr,
    HEAD_TILE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KIND: tl.constexpr,
):
    """Program (token, head)."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    if slot >= 0:
        block = slot // BLOCK_SIZE
        offset = slot % BLOCK_SIZE
        dims = tl.arange(0, HEAD_TILE)
        inside = dims < HEAD_SIZE
        k = tl.load(key + token * key_token_stride + head * key_head_stride + dims, mask=inside)
        v = tl.load(value + token * value_token_stride + head * value_head_stride + dims, mask=inside)
        if KIND != "same":
            k = quantise(k.to(tl.float32), tl.load(key_scale + head * key_scale_stride), KIND)
            v = quantise(v.to(tl.float32), tl.load(value_scale + head * value_scale_stride), KIND)
        k_target = key_cache + block * k_block_stride + head * k_head_stride + offset * k_slot_stride + dims
        v_target = value_cache + block * v_block_stride + head * v_head_stride + offset * v_slot_stride + dims
        tl.store(k_target, k.to(key_cache.dtype.element_ty), mask=inside)
        tl.store(v_target, v.to(value_cache.dtype.element_ty), mask=inside)
