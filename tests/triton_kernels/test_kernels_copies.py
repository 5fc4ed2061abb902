"""Writing new KV and moving blocks, against plain torch, under Triton's interpreter or on a device."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from proxima_kernels.block_copy import BlockLayers, Staging, copy_blocks, dense_parts, gather_blocks, scatter_blocks
from proxima_kernels.block_copy_reference import (
    copy_blocks_reference,
    gather_blocks_reference,
    scatter_blocks_reference,
)
from proxima_kernels.cache import PagedCache
from proxima_kernels.kv_write import write_kv
from proxima_kernels.kv_write_reference import write_kv_reference
from proxima_kernels.launch import INTERPRETED

DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
FLOATS = [torch.float16, torch.bfloat16, torch.float32]


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("stored", ["same", torch.float8_e4m3fn, torch.float8_e5m2, torch.int8])
@pytest.mark.parametrize("dtype", FLOATS)
def test_new_tokens_reach_their_slots_and_nothing_else_changes(dtype, stored, per_head):
    """From numbers far below to far above what the cache's type holds; slot -1 and padding behind are left out."""
    random = torch.Generator().manual_seed(1)
    storage = torch.full((4, 3, 16, 160), 9.0).to(dtype if stored == "same" else stored).to(DEVICE)
    expected = storage.clone()
    scales = [(0.1 * torch.rand(3 if per_head else 1, generator=random) + 0.01).to(DEVICE) for _ in range(2)]
    cache = PagedCache.from_vllm(storage, None, *scales)
    sizes = torch.tensor([1e-5, 1e-3, 1.0, 1.0, 1e3]).reshape(-1, 1, 1)
    key, value = ((torch.randn(5, 3, 80, generator=random) * sizes).to(dtype).to(DEVICE) for _ in range(2))
    slots = torch.tensor([3, -1, 33, 50], device=DEVICE)
    write_kv(key, value, cache, slots)
    write_kv_reference(key[:4], value[:4], expected[..., :80], expected[..., 80:], slots, *scales)
    # By value: a number below the least step may keep its sign in one and lose it in the other.
    torch.testing.assert_close(storage.float(), expected.float(), rtol=0, atol=0)


@pytest.mark.slow
def test_every_half_precision_number_is_quantised_as_torch_does():
    numbers = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(torch.float16)
    numbers = numbers[numbers.isfinite()]
    numbers = torch.nn.functional.pad(numbers, (0, -len(numbers) % 256)).reshape(-1, 1, 256).to(DEVICE)
    slots = torch.arange(len(numbers), device=DEVICE)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8):
        storage = torch.zeros(-(-len(numbers) // 128), 1, 128, 512).to(dtype).to(DEVICE)
        expected = storage.clone()
        write_kv(numbers, numbers, PagedCache.from_vllm(storage), slots)
        write_kv_reference(numbers, numbers, expected[..., :256], expected[..., 256:], slots)
        torch.testing.assert_close(storage.float(), expected.float(), rtol=0, atol=0)


def layers_of(count=3, blocks=8, width=48, dtype=torch.bfloat16, *, seed=0):
    """Layers of both memory orders that vLLM uses, filled with different numbers."""
    random = torch.Generator().manual_seed(seed)
    made = [torch.randn(blocks, 16, 3, width, generator=random).to(dtype).to(DEVICE) for _ in range(count)]
    return [layer.transpose(1, 2) if index % 2 else layer for index, layer in enumerate(made)]


@settings(max_examples=15)
@given(
    moves=st.lists(st.integers(0, 8), min_size=8, max_size=8, unique=True),
    count=st.integers(0, 4),
    width=st.sampled_from([48, 45]),
)
def test_moves_within_the_cache(moves, count, width):
    """Copy on write: `count` blocks to as many others; block 8 stands for padding."""
    ids = [-1 if block == 8 else block for block in moves]
    sources, targets = ids[:count], ids[4 : 4 + count]
    layers, expected = layers_of(width=width, dtype=torch.int8), layers_of(width=width, dtype=torch.int8)
    table = BlockLayers(layers)
    copy_blocks(table, table, sources, targets)
    copy_blocks_reference(expected, expected, sources, targets)
    assert all(torch.equal(a, b) for a, b in zip(layers, expected, strict=True))


def test_swap_out_and_in_through_a_host_pool():
    layers = layers_of()
    original = [layer.clone() for layer in layers]
    pool = [torch.zeros_like(layer[:4], device="cpu") for layer in layers]
    pool = [layer.pin_memory() for layer in pool] if DEVICE == "cuda" else pool
    device, host = BlockLayers(layers), BlockLayers(pool, DEVICE)
    copy_blocks(device, host, [6, 1], [3, 0])
    for layer in layers:
        layer.fill_(-1)
    copy_blocks(host, device, [0, 3], [2, 5])
    for layer, before in zip(layers, original, strict=True):
        assert torch.equal(layer[2], before[1])
        assert torch.equal(layer[5], before[6])
        assert bool((layer[[0, 1, 3, 4, 6, 7]] == -1).all())


@pytest.mark.parametrize("as_tensor", [False, True])
def test_gather_and_scatter(as_tensor):
    layers = layers_of()
    table = BlockLayers(layers)
    blocks = [7, -1, 2]
    given_blocks = torch.tensor(blocks, device=DEVICE) if as_tensor else blocks
    # One row more than there are blocks: it stays as it is.
    buffer, expected = (torch.full(table.staging_shape(4), 5, dtype=torch.uint8, device=DEVICE) for _ in range(2))
    staging = Staging(table, buffer)
    gather_blocks(table, given_blocks, staging)
    gather_blocks_reference(layers, blocks, expected)
    assert torch.equal(buffer, expected)
    back, expected_back = layers_of(seed=1), layers_of(seed=1)
    scatter_blocks(staging, BlockLayers(back), given_blocks)
    scatter_blocks_reference(buffer, expected_back, blocks)
    assert all(torch.equal(a, b) for a, b in zip(back, expected_back, strict=True))


def test_layers_whose_blocks_do_not_lie_together_are_cut_into_such_as_do():
    """vLLM's LBHNC: heads outside of blocks. Keys and values apart, with slots outside of heads."""
    heads_first = torch.arange(3 * 4 * 5 * 6).reshape(3, 4, 5, 6).transpose(0, 1)
    apart = torch.arange(2 * 4 * 5 * 3 * 6).reshape(2, 4, 5, 3, 6).movedim(1, 0).transpose(2, 3)
    for layer, count in ((heads_first, 3), (apart, 2), (heads_first.contiguous(), 1)):
        parts = dense_parts(layer)
        assert len(parts) == count
        assert sorted(value for part in parts for value in part[2].flatten().tolist()) == sorted(
            layer[2].flatten().tolist()
        )
        BlockLayers([part.to(DEVICE) for part in parts])
