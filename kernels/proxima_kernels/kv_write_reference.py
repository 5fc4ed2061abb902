"""What writing new keys and values means, in plain torch."""

from __future__ import annotations

import torch

LIMITS = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


def quantise_reference(values: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`values` (tokens, heads, head_size) over `scale` (one, or one per head) as the cache's `dtype` holds them.

    fp8 saturates and rounds to even; int8 saturates and rounds half up. Other types take no scale.
    """
    if dtype not in LIMITS and dtype != torch.int8:
        return values.to(dtype)
    scaled = values.to(torch.float32) / scale.to(torch.float32).reshape(1, -1, 1)
    if dtype == torch.int8:
        return torch.floor(scaled + 0.5).clamp(-128, 127).to(dtype)
    return scaled.clamp(-LIMITS[dtype], LIMITS[dtype]).to(dtype)


def write_kv_reference(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    key_scale: torch.Tensor | None = None,
    value_scale: torch.Tensor | None = None,
) -> None:
    """Store token t's key and value in slot `slot_mapping[t]`; tokens with a negative slot are left out."""
    block_size = key_cache.shape[2]
    one = torch.ones(1, device=key.device)
    tokens = (slot_mapping >= 0).nonzero().flatten()
    slots = slot_mapping[tokens].long()
    for new, cache, scale in ((key, key_cache, key_scale), (value, value_cache, value_scale)):
        stored = quantise_reference(new[tokens], one if scale is None else scale, cache.dtype)
        cache[slots // block_size, :, slots % block_size] = stored
