"""Time the kernels against what else is installed, and against the bandwidth of a plain copy: a CSV, and a plot of it.

    PYTHONPATH=kernels:engine:config python scripts/gpu/time_kernels.py --csv kernels.csv --plot kernels.svg

A row is one implementation on one shape: median microseconds of repeated CUDA graph replays, bytes that had to be moved
a second, and their share of what `torch.Tensor.copy_` reaches on this device (which counts reading and writing).
Decodes are bound by memory, prompts by arithmetic: for these, see TFLOP/s. Our own kernels come first, then one rival
after the other, and who is stopped by SIGTERM (a rival may compile for minutes) writes what there is.
"""

from __future__ import annotations

import argparse
import csv
import functools
import importlib.metadata
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from problems import DECODES, DEVICE, DRY_RUN, LONG_TAIL, PREFILLS, UNIFORM, Problem, Shape, can_hold, make, shrunk
from rivals import RIVALS, Call

from proxima_engine.swap.copier import copier_for
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


def once_us(call: Call) -> float:
    """For the dry run."""
    begun = time.perf_counter()
    call()
    return 1e6 * (time.perf_counter() - begun)


def streams_us(call: Call) -> float:
    """Median time of a call that uses streams of its own and cannot be captured, with what the host does for it."""
    if DEVICE != "cuda":
        return once_us(call)
    found = []
    for _ in range(10):
        torch.cuda.synchronize()
        found.append(once_us(lambda: (call(), torch.cuda.synchronize())))
    return sorted(found)[len(found) // 2]


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
    """Times calls on one device and adds rows."""

    def __init__(self, device: str, timer: Timer, rows: list[Row]) -> None:
        self.device, self.timer, self.rows = device, timer, rows
        self.name = torch.cuda.get_device_name() if device == "cuda" else device
        self.versions = " ".join(versions())
        size = COPIED_BYTES if device == "cuda" else 1 << 16
        source = torch.zeros(size, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        us = timer(lambda: target.copy_(source))
        self.copy_tb_per_s = 2 * size / us / 1e6
        self.add("copy", "1 GiB", "uint8", "torch", lambda: None, 2 * size, timer=lambda _: us)

    def add(
        self,
        operation: str,
        shape: str,
        dtype: str,
        name: str,
        prepare: Callable[[], Any],
        moved: int,
        operations: int = 0,
        timer: Timer | None = None,
    ) -> None:
        """A row; what cannot run becomes one that says why."""
        us, note = None, ""
        try:
            us = (timer or self.timer)(prepare())
        except Exception as error:  # noqa: BLE001 - what fails is a row, not the end of the run
            note = f"{type(error).__name__}: {error}".splitlines()[0][:120]
        speed = moved / us / 1e6 if us else None
        self.rows.append(
            Row(
                operation=operation,
                shape=shape,
                dtype=dtype,
                implementation=name,
                us=us and round(us, 2),
                tb_per_s=speed and round(speed, 4),
                share_of_copy=speed and round(speed / self.copy_tb_per_s, 3),
                tflop_per_s=round(operations / us / 1e6, 1) if us and operations else None,
                device=self.name,
                versions=self.versions,
                note=note,
            )
        )

    def attention(self, operation: str, problem: Problem, calls: dict[str, Callable[[Problem], Call]]) -> None:
        moved = problem.kv_bytes + 2 * problem.query.nbytes
        for name, prepare in calls.items():
            self.add(
                operation,
                problem.shape.name,
                problem.stored,
                name,
                functools.partial(prepare, problem),
                moved,
                problem.operations,
            )

    def writes(self, problem: Problem) -> None:
        moved = 2 * problem.new_key.numel() * (problem.new_key.element_size() + problem.storage.element_size())
        self.add("write_kv", problem.shape.name, problem.stored, "proxima", lambda: ours_write(problem), moved)

    def moves(self, problem: Problem, *, layers: int, blocks: int, block_bytes: int) -> None:
        """Blocks to pinned memory and back in one launch, copies on the device, and `--swap` beside a step."""
        shape, moved = f"{layers} layers x {blocks} blocks x {block_bytes >> 10} KiB", layers * blocks * block_bytes
        tensors = [
            torch.zeros(2 * blocks, 1, block_bytes, dtype=torch.uint8, device=self.device) for _ in range(layers)
        ]
        chosen = torch.randperm(2 * blocks, device=self.device)
        ids, others = chosen[:blocks], chosen[blocks:]
        slots = torch.arange(blocks, device=self.device)
        host = [torch.zeros(blocks, 1, block_bytes, dtype=torch.uint8) for _ in range(layers)]
        host = [layer.pin_memory() for layer in host] if self.device == "cuda" else host
        cache, pool = BlockLayers(tensors), BlockLayers(host, self.device)
        copier = copier_for({str(index): tensor for index, tensor in enumerate(tensors)}, 2 * blocks, blocks)
        swapped, attended = (ids.tolist(), list(range(blocks))), layers * problem.kv_bytes
        decode = ours_decode(problem)

        def step() -> None:
            for _ in range(layers):
                decode()

        def load_fetched() -> None:
            copier.fetch_ahead(swapped[1])
            copier.load(*swapped)

        def store_and_step() -> None:
            copier.store(*swapped)
            step()

        calls: list[tuple[str, Call, int, Timer]] = [
            ("swap out", lambda: copy_blocks(cache, pool, ids, slots), moved, self.timer),
            ("swap in", lambda: copy_blocks(pool, cache, slots, ids), moved, self.timer),
            ("copy on write", lambda: copy_blocks(cache, cache, ids, others), 2 * moved, self.timer),
            ("--swap out", lambda: copier.store(*swapped), moved, streams_us),
            ("--swap in", lambda: copier.load(*swapped), moved, streams_us),
            ("--swap in, fetched ahead as far as there is room", load_fetched, moved, streams_us),
            (f"{layers} decodes", step, attended, streams_us),
            (f"{layers} decodes beside --swap out", store_and_step, attended + moved, streams_us),
        ]
        for operation, call, size, timer in calls:
            self.add(operation, shape, "uint8", "proxima", functools.partial(_itself, call), size, timer=timer)


def _itself(call: Call) -> Call:
    return call


def versions() -> Iterator[str]:
    for name in ("torch", "triton", "vllm", "flashinfer-python", "flash-attn"):
        try:
            yield f"{name}={importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue


def run(
    device: str,
    timer: Timer,
    decodes: Sequence[Shape],
    prefills: Sequence[Shape],
    rows: list[Row],
    *,
    layers: int,
    blocks: int,
) -> None:
    """Add all rows that the device allows; `layers` and `blocks` of 64 KiB are what is swapped."""
    bench = Bench(device, timer, rows)
    decodes = [shape for shape in decodes if can_hold(device, shape.cache_dtype)]
    for shape in decodes:
        problem = make(shape, device)
        bench.attention("decode", problem, {"proxima": ours_decode, "proxima, with write": ours_write_decode})
        bench.writes(problem)
    for shape in prefills:
        bench.attention("prefill", make(shape, device), {"proxima": ours_prefill})
    bench.moves(make(decodes[0], device), layers=layers, blocks=blocks, block_bytes=64 << 10)
    for rival, prepare in RIVALS.items():
        for operation, shapes in (("decode", decodes), ("prefill", prefills)):
            for shape in shapes:
                bench.attention(operation, make(shape, device), {rival: prepare})


def targets(rows: Sequence[Row]) -> Iterator[str]:
    """What the kernels were written for, and whether they do it: a line each."""
    us = {(row.shape, row.implementation): row.us for row in rows if row.operation == "decode" and row.us}
    for shape in DECODES:
        ours = us.get((shape.name, "proxima"))
        if ours is None:
            continue
        share = next(row.share_of_copy for row in rows if (row.shape, row.implementation) == (shape.name, "proxima"))
        if shape == DECODES[0]:
            yield _target(f"decode {shape.name}, share of a copy's bandwidth", share or 0.0, 0.85)
        rivals = [us[shape.name, name] for name in ("FlashAttention", "FlashInfer") if (shape.name, name) in us]
        if rivals and shape.lengths in (UNIFORM, LONG_TAIL):
            least = 1.3 if shape.lengths == LONG_TAIL else 1.0
            yield _target(
                f"decode {shape.name}, times as fast as the better of FlashAttention and FlashInfer",
                min(rivals) / ours,
                least,
            )


def _target(what: str, found: float, least: float) -> str:
    return f"{'reached' if found >= least else 'MISSED '} {what}: {found:.2f} (target {least:.2f})"


def write_csv(rows: Sequence[Row], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Rivals were timed later than our own: what is compared stands together.
    order = {key: place for place, key in enumerate(dict.fromkeys((row.operation, row.shape) for row in rows))}
    rows = sorted(rows, key=lambda row: order[row.operation, row.shape])
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
    rows: list[Row] = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("time_kernels: stopped; the rest was not timed"))
    try:
        if DRY_RUN:
            small = ([shrunk(shape) for shape in shapes] for shapes in (DECODES, PREFILLS))
            run(DEVICE, once_us, *small, rows, layers=2, blocks=2)
        else:
            run(DEVICE, graph_replays_us, DECODES, PREFILLS, rows, layers=32, blocks=512)
    finally:
        write_csv(rows, arguments.csv)
        for row in rows:
            print(
                f"{row.operation:14} {row.shape:36} {row.implementation:20} {row.us} us {row.share_of_copy} {row.note}"
            )
        for line in targets(rows):
            print(line)
        if arguments.plot is not None:
            plot(rows, arguments.plot)
    return 0 if all(row.us is not None for row in rows if row.implementation.startswith("proxima")) else 1


if __name__ == "__main__":
    sys.exit(main())
