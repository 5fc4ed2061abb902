"""Store new keys and values in the slots that the scheduler names."""

from __future__ import annotations

import torch

from proxima_kernels.arguments import (
    FLOATS,
    check_device,
    check_dtype,
    check_indices,
    check_rows_dense,
    check_runnable,
    check_shape,
)
from proxima_kernels.cache import PagedCache
from proxima_kernels.kv_write_kernel import write_kv_kernel
from proxima_kernels.launch import INTERPRETED, power_of_two, unit_scale


def write_kv(key: torch.Tensor, value: torch.Tensor, cache: PagedCache, slot_mapping: torch.Tensor) -> None:
    """Quantise and scatter `key` and `value` (tokens, kv_heads, head_size) into `cache`.

    `slot_mapping` (tokens,) holds block * block_size + offset; a negative slot is not stored. Two tokens must not name
    one slot. Slots are not checked against the number of blocks: that would wait for the device.

    Raises:
        ValueError, TypeError: naming the argument.
    """
    check_new_kv(key, value, cache, slot_mapping)
    tokens = int(slot_mapping.shape[0])
    if tokens == 0:
        return
    key_scale, key_step, value_scale, value_step = cache.scales()
    one = unit_scale(key.device) if cache.kind != "same" and (key_scale is None or value_scale is None) else key
    write_kv_kernel[(tokens, cache.kv_heads)](
        key,
        value,
        cache.key,
        cache.value,
        slot_mapping,
        one if key_scale is None else key_scale,
        one if value_scale is None else value_scale,
        *key.stride()[:2],
        *value.stride()[:2],
        *cache.strides(),
        key_step,
        value_step,
        HEAD_SIZE=cache.head_size,
        HEAD_TILE=power_of_two(cache.head_size),
        BLOCK_SIZE=cache.block_size,
        KIND=cache.kind,
        num_warps=1,
    )


def check_new_kv(key: torch.Tensor, value: torch.Tensor, cache: PagedCache, slot_mapping: torch.Tensor) -> None:
    """Checks of the arguments of `write_kv`; `key` may have more rows than `slot_mapping`: padding at the end."""
    check_dtype("key", key, FLOATS)
    check_shape("key", key, ["tokens", cache.kv_heads, cache.head_size])
    check_runnable("key", key, interpreted=INTERPRETED)
    check_dtype("value", value, [key.dtype])
    check_shape("value", value, key.shape)
    check_device("value", value, key.device)
    check_device("key_cache", cache.key, key.device)
    check_rows_dense("key", key)
    check_rows_dense("value", value)
    check_indices("slot_mapping", slot_mapping, ["tokens"], key.device)
    if slot_mapping.shape[0] > key.shape[0]:
        raise ValueError(f"slot_mapping has {slot_mapping.shape[0]} entries: must be at most the {key.shape[0]} of key")
    if cache.kind == "same" and cache.key.dtype != key.dtype:
        raise TypeError(f"key is {key.dtype}: must be {cache.key.dtype}, as key_cache is, or key_cache quantised")
