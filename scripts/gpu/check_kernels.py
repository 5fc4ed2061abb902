"""The compiled kernels against their references, on shapes too large for the interpreter: `gpu_check.sh` runs it.

Prints a line per check, and ends with 1 if one fails. In `gpu_check.sh --dry-run` shapes are small.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import torch
from paged_cases import PagedCase, assert_close, paged_case
from problems import DEVICE, DRY_RUN, can_hold

from proxima_engine.swap.copier import copier_for
from proxima_kernels.attention_reference import paged_attention_reference
from proxima_kernels.block_copy import BlockLayers, copy_blocks
from proxima_kernels.decode import decode_workspace, paged_decode_attention, paged_write_decode_attention
from proxima_kernels.kv_write import write_kv
from proxima_kernels.prefill import paged_prefill_attention

BRAIN, HALF, FULL = torch.bfloat16, torch.float16, torch.float32
E4M3, E5M2, INT8 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8
HEADS, KV_HEADS, HEAD_SIZE = (4, 2, 64) if DRY_RUN else (32, 8, 128)
LLAMA = {"heads": HEADS, "kv_heads": KV_HEADS, "head_size": HEAD_SIZE, "dtype": BRAIN}
RAGGED = [70, 1, 2, 33, 17, 0, 9, 32] if DRY_RUN else [20_000, 1, 2, 4096, 777, 0, 129, 4095]
LONG_TAIL = [300, 5, 5] if DRY_RUN else [100_000] + [200] * 255
CHUNKS, NEW = ([40, 20, 33], [20, 20, 1]) if DRY_RUN else ([4096, 600, 33], [2048, 600, 1])
WINDOW = 30 if DRY_RUN else 1000
# A race would not show each time.
REPEATS = 1 if DRY_RUN else 10


def reference(case: PagedCase) -> torch.Tensor:
    arguments = (*case.arguments(), case.query_start_loc, case.seq_lens)
    return paged_attention_reference(*arguments, case.out(), case.options, precision=FULL)


def decode(lengths: list[int], query_len: int = 1, **shape: object) -> Callable[[], None]:
    def check() -> None:
        # A row has no more new tokens than tokens.
        case = paged_case(lengths, [min(query_len, length) or 1 for length in lengths], device=DEVICE, **shape)
        shared = {"query_start_loc": case.query_start_loc, "max_query_len": query_len}
        expected = reference(case)
        for _ in range(REPEATS):
            out = paged_decode_attention(*case.arguments(), case.seq_lens, case.out(), case.options, **shared)
            assert_close(out, expected)

    return check


def write_decode(lengths: list[int], **shape: object) -> Callable[[], None]:
    """In one launch as in two: the same bytes in the cache, the same results."""

    def check() -> None:
        case = paged_case(lengths, [1] * len(lengths), device=DEVICE, **shape)
        new = [torch.randn(len(lengths), case.cache.kv_heads, case.cache.head_size, device=DEVICE) for _ in range(2)]
        new = [values.to(case.query.dtype) for values in new]
        last = (case.seq_lens - 1).long()
        size = case.cache.block_size
        slots = case.block_table.gather(1, (last // size)[:, None]).flatten().long() * size + last % size
        separate = case.with_cache_copy()
        write_kv(*new, separate.cache, slots)
        for _ in range(REPEATS):
            out = paged_write_decode_attention(
                case.query, *new, case.cache, case.block_table, case.seq_lens, slots, case.out(), case.options
            )
            assert_close(out, reference(separate))
        for stored, wanted in ((case.cache.key, separate.cache.key), (case.cache.value, separate.cache.value)):
            torch.testing.assert_close(stored.float(), wanted.float(), rtol=0, atol=0, equal_nan=True)

    return check


def prefill(lengths: list[int], query_lens: list[int], **shape: object) -> Callable[[], None]:
    def check() -> None:
        case = paged_case(lengths, query_lens, device=DEVICE, **shape)
        out = paged_prefill_attention(*case.arguments(), case.query_start_loc, case.seq_lens, case.out(), case.options)
        assert_close(out, reference(case))

    return check


def a_graph_replays_with_the_next_step() -> None:
    """Lengths change under a captured decode; the refilled work list and the buffers stay where they were."""
    first = paged_case(RAGGED, [1] * 8, device=DEVICE, **LLAMA)
    workspace = decode_workspace(8, 1, HEADS, KV_HEADS, HEAD_SIZE, BRAIN, first.query.device)
    lengths, out = first.seq_lens.clone(), first.out()

    def launch() -> None:
        arguments = (*first.arguments(), lengths, out, first.options)
        paged_decode_attention(*arguments, query_start_loc=first.query_start_loc, workspace=workspace)

    workspace.fill(first.query_start_loc, lengths)
    replay = captured(launch)
    for shrink in (1, 2, 7):
        shorter = replace(first, seq_lens=first.seq_lens // shrink)
        lengths.copy_(shorter.seq_lens)
        workspace.fill(first.query_start_loc, lengths)
        replay()
        assert_close(out, reference(shorter))


def captured(launch: Callable[[], None]) -> Callable[[], None]:
    """A CUDA graph of it."""
    launch()
    if DEVICE == "cpu":
        return launch
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    return graph.replay


def blocks_to_pinned_memory_and_back() -> None:
    layers = [torch.randint(0, 255, (40, 8, 16, 256), dtype=torch.uint8, device=DEVICE) for _ in range(4)]
    before = [layer.clone() for layer in layers]
    pool = [torch.zeros_like(layer, device="cpu") for layer in layers]
    host = BlockLayers([layer.pin_memory() if DEVICE == "cuda" else layer for layer in pool], DEVICE)
    device = BlockLayers(layers)
    blocks = torch.randperm(40)[:20].tolist()
    copy_blocks(device, host, blocks, list(range(20)))
    for layer in layers:
        layer.fill_(0)
    copy_blocks(host, device, list(range(20)), blocks)
    for layer, old in zip(layers, before, strict=True):
        if not torch.equal(layer[blocks], old[blocks]):
            raise AssertionError("blocks differ after the way to the host and back")


def swap_beside_steps() -> None:
    """As `--swap` does it, over many pieces, while what was stored is overwritten at once."""
    count, layers_count, width = (12, 2, 256) if DRY_RUN else (256, 32, 65_536)
    layers = {
        str(index): torch.randint(0, 255, (count, 1, width), dtype=torch.uint8, device=DEVICE)
        for index in range(layers_count)
    }
    before = [layer.clone() for layer in layers.values()]
    copier = copier_for(layers, count, count)
    for _ in range(REPEATS):
        order = torch.randperm(count).tolist()
        half = count // 2
        for chosen, host in ((order[:half], list(range(half))), (order[half:], list(range(half, count)))):
            there = torch.tensor(chosen, device=DEVICE)
            copier.store(chosen, host)
            for layer in layers.values():
                layer.index_fill_(0, there, 0)
        # A part comes back from where it was fetched ahead, and is stored anew before the last load.
        copier.fetch_ahead(list(range(0, count, 3)))
        for layer in layers.values():
            layer.index_fill_(0, torch.tensor(order[half:], device=DEVICE), 1)
        copier.load(order[:half], list(range(half)))
        copier.store(order[:half], list(range(half)))
        copier.load(order, list(range(count)))
        for layer, old in zip(layers.values(), before, strict=True):
            if not torch.equal(layer, old):
                raise AssertionError("blocks differ after a swap out and in")


def fetched_ahead() -> None:
    """What crossed the bus beside a step is found, and is what it was before the host was written again."""
    count, width = (12, 256) if DRY_RUN else (64, 65_536)
    layers = {
        str(index): torch.randint(0, 255, (count, 1, width), dtype=torch.uint8, device=DEVICE) for index in (0, 1)
    }
    before = [layer.clone() for layer in layers.values()]
    copier = copier_for(layers, count, count)
    half = count // 2
    for _ in range(REPEATS):
        copier.store(list(range(half)), list(range(half)))
        fetched = copier.fetch_ahead(list(range(half)))
        for layer in layers.values():
            layer[:half] = 0
        # The zeros take the place of the first on the host.
        copier.store([0], [0])
        found = copier.load(list(range(half)), list(range(half)))
        if DEVICE == "cuda" and (fetched, found) != (half, half - 1):
            raise AssertionError(f"{fetched} of {half} blocks were fetched ahead, and {found} of {half - 1} found")
        for layer, old in zip(layers.values(), before, strict=True):
            if layer[0].any() or not torch.equal(layer[1:], old[1:]):
                raise AssertionError("blocks differ after they were fetched ahead")
            layer[0] = old[0]


CHECKS: dict[str, Callable[[], None]] = {
    "decode bf16, ragged": decode(RAGGED, **LLAMA),
    "decode bf16, one long beside many short": decode(LONG_TAIL, **LLAMA),
    "decode fp16, MHA, head 80": decode(RAGGED, heads=8, kv_heads=8, head_size=80, dtype=HALF),
    "decode bf16, head 256, blocks of 128": decode(
        RAGGED, heads=4, kv_heads=1, head_size=256, block_size=128, dtype=BRAIN
    ),
    "decode fp32": decode(RAGGED, heads=8, kv_heads=2, dtype=FULL),
    "decode bf16, fp8 e4m3 cache": decode(RAGGED, **LLAMA, cache_dtype=E4M3, per_head_scales=True),
    "decode bf16, fp8 e5m2 cache": decode(RAGGED, **LLAMA, cache_dtype=E5M2),
    "decode bf16, int8 cache": decode(RAGGED, **LLAMA, cache_dtype=INT8),
    "decode bf16, window, soft cap, ALiBi": decode(RAGGED, **LLAMA, sliding_window=WINDOW, soft_cap=30.0, alibi=True),
    "decode bf16, 5 tokens a row": decode([length or 7 for length in RAGGED], 5, **LLAMA),
    "write and decode bf16": write_decode([length or 7 for length in RAGGED], **LLAMA),
    "write and decode bf16, fp8 e4m3 cache": write_decode(
        [length or 7 for length in RAGGED], **LLAMA, cache_dtype=E4M3
    ),
    "prefill bf16": prefill(CHUNKS, NEW, **LLAMA),
    "prefill bf16, window": prefill(CHUNKS, NEW, **LLAMA, sliding_window=WINDOW),
    "CUDA graph of a decode": a_graph_replays_with_the_next_step,
    "blocks to pinned memory and back": blocks_to_pinned_memory_and_back,
    "swap beside steps": swap_beside_steps,
    "swap fetched ahead": fetched_ahead,
}


def main() -> int:
    failed = 0
    for name, check in CHECKS.items():
        if "fp8" in name and not can_hold(DEVICE, E4M3):
            print(f"left out {name}: not on this device", flush=True)
            continue
        try:
            check()
        except Exception as error:  # noqa: BLE001 - what goes wrong on a device is what this script is for
            failed += 1
            print(f"FAILED  {name}: {type(error).__name__}: {str(error)[:500]}", flush=True)
        else:
            print(f"ok      {name}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
