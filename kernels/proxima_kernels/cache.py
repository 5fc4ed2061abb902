"""The paged cache as the kernels see it: two strided views, scales, and the checks of both."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from proxima_kernels.arguments import CACHE_DTYPES, FP8, check_device, check_dtype, check_rows_dense, check_shape
from proxima_kernels.launch import INTERPRETED, capability

KINDS = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2", torch.int8: "int8"}
MIN_HEAD_SIZE, MAX_HEAD_SIZE = 16, 256
BLOCK_SIZES = (16, 128)


@dataclass(frozen=True)
class PagedCache:
    """Keys and values of one layer.

    `key` and `value` are (blocks, kv_heads, block_size, head_size) views with any strides but the last: vLLM keeps
    both side by side in one tensor (blocks, kv_heads, block_size, 2 * head_size), see `from_vllm`.
    Scales are float32, one for all or one per KV head: stored value * scale = value. None is 1.

    Raises:
        ValueError, TypeError: naming the argument.
    """

    key: torch.Tensor
    value: torch.Tensor
    key_scale: torch.Tensor | None = None
    value_scale: torch.Tensor | None = None

    def __post_init__(self) -> None:
        check_dtype("key_cache", self.key, CACHE_DTYPES)
        check_shape("key_cache", self.key, ["blocks", "kv_heads", "block_size", "head_size"])
        check_dtype("value_cache", self.value, [self.key.dtype])
        check_shape("value_cache", self.value, self.key.shape)
        check_device("value_cache", self.value, self.key.device)
        for name, tensor in (("key_cache", self.key), ("value_cache", self.value)):
            check_rows_dense(name, tensor)
        if not BLOCK_SIZES[0] <= self.block_size <= BLOCK_SIZES[1] or self.block_size % 16:
            raise ValueError(f"key_cache has block_size {self.block_size}: must be a multiple of 16 from 16 to 128")
        if not MIN_HEAD_SIZE <= self.head_size <= MAX_HEAD_SIZE or self.head_size % 8:
            raise ValueError(f"key_cache has head_size {self.head_size}: must be a multiple of 8 from 16 to 256")
        if self.key.dtype in FP8 and not INTERPRETED and self.key.is_cuda and capability(self.key.device) < (8, 9):
            raise ValueError(f"key_cache is {self.key.dtype}: fp8 needs compute capability 8.9 or higher")
        for name, scale in (("key_scale", self.key_scale), ("value_scale", self.value_scale)):
            if scale is not None:
                self._check_scale(name, scale)

    def _check_scale(self, name: str, scale: torch.Tensor) -> None:
        check_dtype(name, scale, [torch.float32])
        check_device(name, scale, self.key.device)
        if scale.numel() not in {1, self.kv_heads}:
            raise ValueError(f"{name} has {scale.numel()} values: must be 1 or {self.kv_heads}, one per KV head")
        if not scale.is_contiguous():
            raise ValueError(f"{name} is not contiguous: strides {scale.stride()}")

    @classmethod
    def from_vllm(
        cls,
        cache: torch.Tensor,
        dtype: torch.dtype | None = None,
        key_scale: torch.Tensor | None = None,
        value_scale: torch.Tensor | None = None,
    ) -> PagedCache:
        """From vLLM's tensor of one layer; `dtype` is what its bytes mean where vLLM stores uint8."""
        check_shape("cache", cache, ["blocks", "kv_heads", "block_size", "2 * head_size"])
        half = cache.shape[-1] // 2
        key, value = cache[..., :half], cache[..., half:]
        if dtype is not None and dtype != cache.dtype:
            key, value = key.view(dtype), value.view(dtype)
        return cls(key, value, key_scale, value_scale)

    @property
    def kv_heads(self) -> int:
        return int(self.key.shape[1])

    @property
    def block_size(self) -> int:
        return int(self.key.shape[2])

    @property
    def head_size(self) -> int:
        return int(self.key.shape[3])

    @property
    def kind(self) -> str:
        """How values are stored: `same` as they are, or the name of the quantised type."""
        return KINDS.get(self.key.dtype, "same")

    def scales(self) -> tuple[torch.Tensor | None, int, torch.Tensor | None, int]:
        """Scales with the step from head to head: 0 where one serves all."""
        steps = [0 if scale is None or scale.numel() == 1 else 1 for scale in (self.key_scale, self.value_scale)]
        return self.key_scale, steps[0], self.value_scale, steps[1]

    def strides(self) -> tuple[int, ...]:
        """Of block, head and slot, of keys and then of values."""
        return (*self.key.stride()[:3], *self.value.stride()[:3])
