"""Shapes that `time_kernels.py` and `tune_kernels.py` run, as tensors on the device.

Under Triton's interpreter (`--dry-run`) they are shrunk, and show that the scripts work; their times mean nothing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import torch

from proxima_kernels.arguments import FP8
from proxima_kernels.attention_options import AttentionOptions
from proxima_kernels.cache import PagedCache
from proxima_kernels.launch import capability

DRY_RUN = os.environ.get("TRITON_INTERPRET", "0") == "1"
DEVICE = "cpu" if DRY_RUN else "cuda"

UNIFORM = (4096,) * 64
LONG_TAIL = (100_000,) + (400,) * 255
MIXED = tuple(64 * (1 + i % 61) for i in range(128))


@dataclass(frozen=True)
class Shape:
    """One batch; `query_len` tokens of each row are new. Llama 3's 8B by default."""

    name: str
    lengths: tuple[int, ...]
    query_len: int = 1
    heads: int = 32
    kv_heads: int = 8
    head_size: int = 128
    block_size: int = 16
    dtype: torch.dtype = torch.bfloat16
    cache_dtype: torch.dtype | None = None


DECODES = [
    Shape("64 x 4k", UNIFORM),
    Shape("64 x 4k, fp8", UNIFORM, cache_dtype=torch.float8_e4m3fn),
    Shape("1 x 32k", (32_768,)),
    Shape("1 x 100k + 255 x 400", LONG_TAIL),
    Shape("128 mixed, 64 to 3.9k", MIXED),
    Shape("64 x 4k, MHA of 32", UNIFORM, kv_heads=32),
    Shape("64 x 4k, 4 speculated", UNIFORM, query_len=5),
]
PREFILLS = [
    Shape("4 x 2k", (2048,) * 4, query_len=2048),
    Shape("8 chunks of 512 after 4k", (4608,) * 8, query_len=512),
]


def shrunk(shape: Shape) -> Shape:
    """A few rows of a few tokens: seconds under the interpreter. Types and the ratio of heads stay."""
    group, kv_heads = shape.heads // shape.kv_heads, min(shape.kv_heads, 2)
    lengths = tuple(shape.query_len % 16 + 5 + length % 37 for length in shape.lengths[:3])
    return replace(
        shape,
        lengths=lengths,
        query_len=shape.query_len % 16 or 5,
        heads=group * kv_heads,
        kv_heads=kv_heads,
        head_size=64,
    )


@dataclass(frozen=True)
class Problem:
    """A shape with its tensors."""

    shape: Shape
    query: torch.Tensor
    new_key: torch.Tensor
    new_value: torch.Tensor
    storage: torch.Tensor  # (blocks, kv_heads, block_size, 2 * head_size), as vLLM keeps it
    cache: PagedCache
    block_table: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    slot_mapping: torch.Tensor
    options: AttentionOptions

    @property
    def out(self) -> torch.Tensor:
        return torch.empty_like(self.query)

    @property
    def stored(self) -> str:
        """The cache's type."""
        return str(self.storage.dtype).removeprefix("torch.")

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values that attention has to read."""
        shape = self.shape
        return sum(shape.lengths) * shape.kv_heads * 2 * shape.head_size * self.storage.element_size()

    @property
    def operations(self) -> int:
        """Floating-point operations of both products, the causal mask counted."""
        shape = self.shape
        seen = sum(shape.query_len * (length - (shape.query_len - 1) / 2) for length in shape.lengths)
        return int(4 * seen * shape.heads * shape.head_size)


def can_hold(device: str, cache_dtype: object) -> bool:
    """Whether kernels for that device know the type: fp8 needs compute capability 8.9."""
    return cache_dtype not in FP8 or capability(torch.device(device)) >= (8, 9)


def make(shape: Shape, device: str, seed: int = 0) -> Problem:
    """Random numbers, blocks in random order."""
    random = torch.Generator(device).manual_seed(seed)
    size = shape.block_size
    needed = [-(-length // size) for length in shape.lengths]
    order = torch.randperm(sum(needed), generator=random, device=device).to(torch.int32)
    table = torch.zeros(len(needed), max(needed), dtype=torch.int32, device=device)
    used = 0
    for row, count in enumerate(needed):
        table[row, :count] = order[used : used + count]
        used += count
    lengths = torch.tensor(shape.lengths, dtype=torch.int32, device=device)
    starts = torch.arange(len(needed) + 1, dtype=torch.int32, device=device) * shape.query_len
    positions = (lengths[:, None] - shape.query_len + torch.arange(shape.query_len, device=device)).long()
    slots = table.gather(1, positions // size).long() * size + positions % size

    def normal(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, generator=random, device=device, dtype=torch.float32).to(shape.dtype)

    tokens = len(needed) * shape.query_len
    storage = torch.empty(
        sum(needed), shape.kv_heads, size, 2 * shape.head_size, dtype=shape.cache_dtype or shape.dtype, device=device
    )
    for block in storage.split(4096):
        block.copy_(normal(*block.shape))
    return Problem(
        shape=shape,
        query=normal(tokens, shape.heads, shape.head_size),
        new_key=normal(tokens, shape.kv_heads, shape.head_size),
        new_value=normal(tokens, shape.kv_heads, shape.head_size),
        storage=storage,
        cache=PagedCache.from_vllm(storage),
        block_table=table,
        query_start_loc=starts,
        seq_lens=lengths,
        slot_mapping=slots.flatten(),
        options=AttentionOptions(scale=shape.head_size**-0.5),
    )
