"""Time the kernels against what else is installed, and against the bandwidth of a plain copy: a CSV, and a plot of it.

    PYTHONPATH=kernels python scripts/gpu/time_kernels.py --csv kernels.csv --plot kernels.svg

A row is one implementation on one shape: median microseconds of repeated CUDA graph replays, bytes that had to be moved
a second, and their share of what `torch.Tensor.copy_` reaches on this device (which counts reading and writing).
Decodes are bound by memory, prompts by arithmetic: for these, see TFLOP/s.
"""

from __future__ import annotations

import argparse
import csv
import importlib.metadata
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from problems import DECODES, PREFILLS, Problem, Shape, can_hold, make
from rivals import RIVALS, Call

from proxima_kernels.block_copy import BlockLayers, copy_blocks
from proxima_kernels.decode import decode_workspace, paged_decode_attention, paged_write_decode_attention
from proxima_kernels.kv_write import write_kv
from proxima_kernels.prefill import paged_prefill_attention, prefill_work_list

Timer = Callable[[Call], float]  # microseconds
COPIED_BYTES = 1 << 30


@dataclass(frozen=True)
class Row:
    operation: str
    shape: str
    dtype: str
    implementation: str
    us: float | None
    tb_per_s: float | None
    share_of_copy: float | None
    tflop_per_s: float | None
    device: str
    versions: str
    note: str = ""


def graph_replays_us(call: Call) -> float:
    """Median time of one call within a CUDA graph of many."""
    import triton

    return float(triton.testing.do_bench_cudagraph(call, rep=50, return_mode="median")) * 1e3


def ours_decode(problem: Problem) -> Call:
    workspace, out = workspace_of(problem), problem.out
    arguments = (problem.query, problem.cache, problem.block_table, problem.seq_lens, out, problem.options)
    shared = {"query_start_loc": problem.query_start_loc, "max_query_len": problem.shape.query_len}
    return lambda: paged_decode_attention(*arguments, **shared, workspace=workspace)


def ours_write_decode(problem: Problem) -> Call:
    workspace, out = workspace_of(problem), problem.out
    arguments = (problem.query, problem.new_key, problem.new_value, problem.cache, problem.block_table)
    rest = (problem.seq_lens, problem.slot_mapping, out, problem.options)
    shared = {"query_start_loc": problem.query_start_loc, "max_query_len": problem.shape.query_len}
    return lambda: paged_write_decode_attention(*arguments, *rest, **shared, workspace=workspace)


def workspace_of(problem: Problem) -> Any:
    shape = problem.shape
    sizes = (len(shape.lengths), shape.query_len, shape.heads, shape.kv_heads, shape.head_size, shape.dtype)
    workspace = decode_workspace(*sizes, problem.query.device)
    workspace.fill(problem.query_start_loc, problem.seq_lens)
    return workspace


def ours_prefill(problem: Problem) -> Call:
    shape, tokens, out = problem.shape, int(problem.query.shape[0]), problem.out
    starts, lengths = problem.query_start_loc, problem.seq_lens
    sizes = (shape.heads, shape.kv_heads, shape.head_size, shape.dtype)
    work_list = prefill_work_list(starts, lengths, *sizes, max_tokens=tokens)
    arguments = (problem.query, problem.cache, problem.block_table, starts, lengths, out, problem.options)
    return lambda: paged_prefill_attention(*arguments, max_tokens=tokens, work_list=work_list)


def ours_write(problem: Problem) -> Call:
    return lambda: write_kv(problem.new_key, problem.new_value, problem.cache, problem.slot_mapping)


class Bench:
    """Times calls on one device and keeps rows."""

    def __init__(self, device: str, timer: Timer) -> None:
        self.device, self.timer = device, timer
        self.name = torch.cuda.get_device_name() if device == "cuda" else device
        self.versions = " ".join(versions())
        size = COPIED_BYTES if device == "cuda" else 1 << 16
        source = torch.zeros(size, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        us = self.timer(lambda: target.copy_(source))
        self.copy_tb_per_s = 2 * size / us / 1e6
        self.rows = [self.row("copy", "1 GiB", "uint8", "torch", us, 2 * size)]

    def row(self, operation: str, shape: str, dtype: str, name: str, us: float, moved: int, operations: int = 0) -> Row:
        speed = moved / us / 1e6
        return Row(
            operation=operation,
            shape=shape,
            dtype=dtype,
            implementation=name,
            us=round(us, 2),
            tb_per_s=round(speed, 4),
            share_of_copy=round(speed / self.copy_tb_per_s, 3),
            tflop_per_s=round(operations / us / 1e6, 1) if operations else None,
            device=self.name,
            versions=self.versions,
        )

    def compare(self, operation: str, problem: Problem, calls: dict[str, Callable[[Problem], Call]]) -> None:
        """One row for each; what cannot run becomes a row that says why."""
        shape = problem.shape
        stored = str(problem.storage.dtype).removeprefix("torch.")
        for name, prepare in calls.items():
            try:
                us = self.timer(prepare(problem))
            except Exception as error:  # noqa: BLE001 - a rival that fails is a row, not the end of the run
                note = f"{type(error).__name__}: {error}".splitlines()[0][:120]
                fixed = (operation, shape.name, stored, name, None, None, None, None, self.name, self.versions)
                self.rows.append(Row(*fixed, note=note))
                continue
            moved = problem.kv_bytes + 2 * problem.query.nbytes
            self.rows.append(self.row(operation, shape.name, stored, name, us, moved, problem.operations))

    def writes(self, problem: Problem) -> None:
        moved = 2 * problem.new_key.numel() * (problem.new_key.element_size() + problem.storage.element_size())
        stored = str(problem.storage.dtype).removeprefix("torch.")
        us = self.timer(ours_write(problem))
        self.rows.append(self.row("write_kv", problem.shape.name, stored, "proxima", us, moved))

    def moves(self, problem: Problem, *, layers: int, blocks: int, block_bytes: int) -> None:
        """Swap-out of scattered blocks to pinned memory and back, copies on the device, and a swap beside a step."""
        tensors = [torch.zeros(2 * blocks, block_bytes, dtype=torch.uint8, device=self.device) for _ in range(layers)]
        host = [torch.zeros(blocks, block_bytes, dtype=torch.uint8) for _ in range(layers)]
        host = [layer.pin_memory() for layer in host] if self.device == "cuda" else host
        cache, pool = BlockLayers(tensors), BlockLayers(host, self.device)
        chosen = torch.randperm(2 * blocks, device=self.device)
        ids, others = chosen[:blocks], chosen[blocks:]
        slots = torch.arange(blocks, device=self.device)
        shape, moved = f"{layers} layers x {blocks} blocks x {block_bytes >> 10} KiB", layers * blocks * block_bytes

        def swap_out() -> None:
            copy_blocks(cache, pool, ids, slots)

        def step() -> None:
            for _ in range(layers):
                decode()

        decode = ours_decode(problem)
        for operation, call, size in (
            ("swap out", swap_out, moved),
            ("swap in", lambda: copy_blocks(pool, cache, slots, ids), moved),
            ("copy on write", lambda: copy_blocks(cache, cache, ids, others), 2 * moved),
            (f"{layers} decodes alone", step, layers * problem.kv_bytes),
            (
                f"{layers} decodes beside swap out",
                lambda: self.beside(step, swap_out),
                layers * problem.kv_bytes + moved,
            ),
        ):
            self.rows.append(self.row(operation, shape, "uint8", "proxima", self.timer(call), size))

    def beside(self, first: Call, second: Call) -> None:
        """Both at once, on two streams."""
        if self.device != "cuda":
            first()
            second()
            return
        main, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            second()
        first()
        main.wait_stream(side)


def versions() -> Iterator[str]:
    for name in ("torch", "triton", "vllm", "flashinfer-python", "flash-attn"):
        try:
            yield f"{name}={importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue


def run(
    device: str, timer: Timer, decodes: Sequence[Shape], prefills: Sequence[Shape], *, layers: int, blocks: int
) -> list[Row]:
    """All rows that the device allows; `layers` and `blocks` of 64 KiB are what is swapped."""
    bench = Bench(device, timer)
    for shape in decodes:
        if not can_hold(device, shape.cache_dtype):
            continue
        problem = make(shape, device)
        ours = {"proxima": ours_decode, "proxima, with write": ours_write_decode}
        bench.compare("decode", problem, ours | RIVALS)
        bench.writes(problem)
    for shape in prefills:
        bench.compare("prefill", make(shape, device), {"proxima": ours_prefill} | RIVALS)
    bench.moves(make(decodes[0], device), layers=layers, blocks=blocks, block_bytes=64 << 10)
    return bench.rows


def write_csv(rows: Sequence[Row], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def plot(rows: Sequence[Row], path: Path) -> None:
    """A bar for each implementation, by shape: share of the copy's bandwidth, and TFLOP/s for prompts."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(12, 6), layout="constrained")
    for axis, operation, value, label in (
        (axes[0], "decode", "share_of_copy", "share of the bandwidth of a copy"),
        (axes[1], "prefill", "tflop_per_s", "TFLOP/s"),
    ):
        shown = [row for row in rows if row.operation == operation and getattr(row, value) is not None]
        axis.barh([f"{row.shape}: {row.implementation}" for row in shown], [getattr(row, value) for row in shown])
        axis.invert_yaxis()
        axis.set_xlabel(label)
        axis.set_title(operation)
    figure.suptitle(rows[0].device)
    figure.savefig(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    rows = run("cuda", graph_replays_us, DECODES, PREFILLS, layers=32, blocks=512)
    write_csv(rows, arguments.csv)
    for row in rows:
        print(f"{row.operation:14} {row.shape:36} {row.implementation:20} {row.us} us  {row.share_of_copy}  {row.note}")
    if arguments.plot is not None:
        plot(rows, arguments.plot)
    return 0 if all(row.us is not None for row in rows if row.implementation.startswith("proxima")) else 1


if __name__ == "__main__":
    sys.exit(main())
