"""The compiled kernels against their references, on shapes too large for the interpreter: `gpu_check.sh` runs it.

Prints a line per check, and ends with 1 if one fails.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import torch
from paged_cases import PagedCase, assert_close, paged_case
from problems import can_hold

from proxima_kernels.attention_reference import paged_attention_reference
from proxima_kernels.block_copy import BlockLayers, copy_blocks
from proxima_kernels.decode import decode_workspace, paged_decode_attention
from proxima_kernels.prefill import paged_prefill_attention

DEVICE = "cuda"
BRAIN, HALF, FULL = torch.bfloat16, torch.float16, torch.float32
LLAMA = {"heads": 32, "kv_heads": 8, "head_size": 128, "dtype": BRAIN}
RAGGED = [20_000, 1, 2, 4096, 777, 0, 129, 4095]


def reference(case: PagedCase) -> torch.Tensor:
    arguments = (*case.arguments(), case.query_start_loc, case.seq_lens)
    return paged_attention_reference(*arguments, case.out(), case.options, precision=FULL)


def decode(lengths: list[int], **shape: object) -> Callable[[], None]:
    def check() -> None:
        case = paged_case(lengths, [1] * len(lengths), device=DEVICE, **shape)
        expected = reference(case)
        for _ in range(10):  # A race would not show each time.
            out = paged_decode_attention(*case.arguments(), case.seq_lens, case.out(), case.options)
            assert_close(out, expected)

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
    heads, kv_heads, head_size = 32, 8, 128
    workspace = decode_workspace(8, 1, heads, kv_heads, head_size, BRAIN, torch.device(DEVICE))
    lengths, out = first.seq_lens.clone(), first.out()

    def launch() -> None:
        arguments = (*first.arguments(), lengths, out, first.options)
        paged_decode_attention(*arguments, query_start_loc=first.query_start_loc, workspace=workspace)

    workspace.fill(first.query_start_loc, lengths)
    launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    for shrink in (1, 2, 7):
        shorter = replace(first, seq_lens=first.seq_lens // shrink)
        lengths.copy_(shorter.seq_lens)
        workspace.fill(first.query_start_loc, lengths)
        graph.replay()
        assert_close(out, reference(shorter))


def swap_and_back() -> None:
    layers = [torch.randint(0, 255, (256, 8, 16, 256), dtype=torch.uint8, device=DEVICE) for _ in range(4)]
    before = [layer.clone() for layer in layers]
    host = BlockLayers([torch.zeros_like(layer, device="cpu").pin_memory() for layer in layers], DEVICE)
    device = BlockLayers(layers)
    blocks = torch.randperm(256)[:100].tolist()
    copy_blocks(device, host, blocks, list(range(100)))
    for layer in layers:
        layer.fill_(0)
    copy_blocks(host, device, list(range(100)), blocks)
    torch.cuda.synchronize()
    for layer, old in zip(layers, before, strict=True):
        if not torch.equal(layer[blocks], old[blocks]):
            raise AssertionError("blocks differ after a swap out and in")


CHECKS: dict[str, Callable[[], None]] = {
    "decode bf16, ragged": decode(RAGGED, **LLAMA),
    "decode bf16, one of 100,000 beside 255": decode([100_000] + [200] * 255, **LLAMA),
    "decode fp16, MHA, head 80": decode(RAGGED, heads=8, kv_heads=8, head_size=80, dtype=HALF),
    "decode fp32": decode(RAGGED, heads=8, kv_heads=2, dtype=FULL),
    "decode bf16, fp8 e4m3 cache": decode(RAGGED, **LLAMA, cache_dtype=torch.float8_e4m3fn, per_head_scales=True),
    "decode bf16, int8 cache": decode(RAGGED, **LLAMA, cache_dtype=torch.int8),
    "decode bf16, window, soft cap, ALiBi": decode(RAGGED, **LLAMA, sliding_window=1000, soft_cap=30.0, alibi=True),
    "prefill bf16": prefill([4096, 600, 33], [2048, 600, 1], **LLAMA),
    "prefill bf16, window": prefill([4096, 600, 33], [2048, 600, 1], **LLAMA, sliding_window=300),
    "CUDA graph of a decode": a_graph_replays_with_the_next_step,
    "swap out and in": swap_and_back,
}


def main() -> int:
    failed = 0
    for name, check in CHECKS.items():
        if "fp8" in name and not can_hold(DEVICE, torch.float8_e4m3fn):
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
