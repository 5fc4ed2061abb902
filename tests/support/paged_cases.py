"""Random paged batches for tests of the kernels: poisoned caches, permuted block tables, ragged lengths."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from proxima_kernels.attention_options import AttentionOptions
from proxima_kernels.cache import PagedCache
from proxima_kernels.kv_write_reference import quantise_reference

# What the dtype of query and result allows, and what float32 sums in another order differ by.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
SENTINEL = 77.0


@dataclass(frozen=True)
class PagedCase:
    """Arguments of one attention call. What no call may read is NaN (127 in int8), blocks and tails alike."""

    query: torch.Tensor
    cache: PagedCache
    block_table: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    options: AttentionOptions

    def arguments(self) -> tuple[Any, ...]:
        return self.query, self.cache, self.block_table

    def out(self) -> torch.Tensor:
        return torch.full_like(self.query, SENTINEL)

    def with_cache_copy(self) -> PagedCase:
        cache = replace(self.cache, key=self.cache.key.clone(), value=self.cache.value.clone())
        return replace(self, cache=cache)


def paged_case(
    lengths: list[int],
    query_lens: list[int],
    *,
    heads: int = 4,
    kv_heads: int = 2,
    head_size: int = 64,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
    per_head_scales: bool = False,
    alibi: bool = False,
    shared_prefix: bool = False,
    vllm_layout: bool = True,
    seed: int = 0,
    device: str = "cpu",
    **options: Any,
) -> PagedCase:
    """Rows with `lengths` keys, of which the last `query_lens` are the queries' own."""
    random = torch.Generator().manual_seed(seed)
    cache_dtype = cache_dtype or dtype
    width = max(1, *(-(-length // block_size) for length in lengths)) + 1
    num_blocks = 2 + sum(-(-length // block_size) for length in lengths)
    # Entries that nobody may read point outside of the cache.
    table = torch.full((len(lengths), width), 1 << 30, dtype=torch.int32)
    free = torch.randperm(num_blocks, generator=random).tolist()
    used = torch.zeros(num_blocks, block_size, dtype=torch.bool)
    for row, length in enumerate(lengths):
        for place in range(-(-length // block_size)):
            full = (place + 1) * block_size <= length
            share = shared_prefix and row and full and (place + 1) * block_size <= lengths[row - 1]
            block = int(table[row - 1, place]) if share else free.pop()
            table[row, place] = block
            used[block, : min(block_size, length - place * block_size)] = True
    scales: list[torch.Tensor | None] = [None, None]
    if cache_dtype != dtype:
        count = kv_heads if per_head_scales else 1
        base = 0.03 if cache_dtype == torch.int8 else 0.4
        scales = [base * (1 + torch.rand(count, generator=random)) for _ in range(2)]
    halves = []
    for scale in scales:
        values = torch.randn(num_blocks * block_size, kv_heads, head_size, generator=random)
        stored = quantise_reference(values, torch.ones(1) if scale is None else scale, cache_dtype)
        halves.append(stored.reshape(num_blocks, block_size, kv_heads, head_size))
    storage = torch.cat(halves, dim=-1)
    poison = torch.tensor(127 if cache_dtype == torch.int8 else float("nan")).to(cache_dtype)
    storage.view(torch.uint8 if storage.itemsize == 1 else storage.dtype)[~used] = poison.view(
        torch.uint8 if storage.itemsize == 1 else storage.dtype
    )
    # vLLM keeps heads or slots outermost in a block, and keys and values side by side.
    storage = storage.transpose(1, 2) if not vllm_layout else storage.transpose(1, 2).contiguous()
    starts = torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32)
    query = torch.randn(int(starts[-1]), heads, head_size, generator=random).to(dtype)
    slopes = torch.rand(heads, generator=random).to(device) if alibi else None
    moved = [None if scale is None else scale.to(device) for scale in scales]
    return PagedCase(
        query=query.to(device),
        cache=PagedCache.from_vllm(storage.to(device), None, moved[0], moved[1]),
        block_table=table.to(device),
        query_start_loc=starts.to(device),
        seq_lens=torch.tensor(lengths, dtype=torch.int32, device=device),
        options=AttentionOptions(scale=head_size**-0.5, alibi_slopes=slopes, **options),
    )


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Within the tolerance of the result's dtype; a NaN from poisoned memory never is."""
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance)
