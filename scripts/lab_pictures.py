"""The pictures of docs/scheduling.md, drawn from runs of the lab.

    .venv/bin/python scripts/lab_pictures.py [timeline] [backfill] [peak] [trade]

Writes docs/pictures/*.svg; the same runs give the same files, to the byte. `trade` runs 1,500 requests ten times and
takes minutes, the others seconds.
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from proxima_config.slo import SLO
from proxima_config.traces import AZURE_CUT
from proxima_engine.lab import generators, traces
from proxima_engine.lab.arms import ArmContext, arm
from proxima_engine.lab.engine import EngineShape, LabEngine, StepEnd
from proxima_engine.lab.experiment import run_arm
from proxima_engine.lab.profiles import profile
from proxima_engine.lab.requests import LabRequest, Workload
from proxima_engine.lab.setting import Setting
from proxima_engine.lab.simulate import simulate

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"
MACHINE = profile("h100-llama2-7b")
TARGETS = SLO(ttft_s=2.0, stall_s=0.2)
BLOCK = 16
GREY, RED, GREEN, BLUE = "#c9ced6", "#d1495b", "#3a7d44", "#30638e"
rcParams.update({"svg.hashsalt": "proxima", "font.size": 8, "axes.spines.top": False, "axes.spines.right": False})


@dataclass
class Watched:
    """What happened to the pool, step by step."""

    times_s: list[float] = field(default_factory=list)
    held: list[dict[str, int]] = field(default_factory=list)
    """Blocks of each request that runs."""
    used: list[int] = field(default_factory=list)
    peak: list[int] = field(default_factory=list)
    """Forecast of the plan; 0 for schedulers that make none."""
    tokens_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    sent_s: dict[str, float] = field(default_factory=dict)


class WatchedEngine(LabEngine):
    """Notes the state of the pool after each step."""

    def __init__(self, shape: EngineShape, name: str, max_wait_s: float) -> None:
        targets = {"ttft_s": TARGETS.ttft_s, "stall_s": TARGETS.stall_s}
        context = ArmContext(**targets, max_wait_s=max_wait_s, true_lengths={}, seed=0)
        super().__init__(shape, MACHINE.cost, arm(name).make(context))
        self.seen = Watched()

    def add(self, request: LabRequest) -> None:
        self.seen.sent_s[request.request_id] = request.arrival_s
        super().add(request)

    def advance(self) -> StepEnd | None:
        end = super().advance()
        if end is not None:
            blocks = self.scheduler.kv_cache_manager.coordinator.single_type_managers[0].req_to_blocks
            self.seen.times_s.append(end.now_s)
            self.seen.held.append({each.request_id: len(blocks[each.request_id]) for each in self.scheduler.running})
            self.seen.used.append(self.used_blocks)
            self.seen.peak.append(self.scheduler.proxima_plan.peak_blocks if self._plans else 0)
            for request_id in end.tokens:
                self.seen.tokens_s[request_id].append(end.now_s)
        return end

    @property
    def _plans(self) -> bool:
        return hasattr(self.scheduler, "proxima_plan")


def watch(name: str, workload: Workload, blocks: int) -> Watched:
    longest = min(blocks * BLOCK, max(each.input_tokens + each.cap_tokens for each in workload.requests))
    engine = WatchedEngine(EngineShape(blocks, BLOCK, longest, MACHINE.limits), name, max_wait_s=75.0)
    simulate(engine, workload, longest_tokens=longest)
    return engine.seen


# -- timeline ----------------------------------------------------------------------------------------------------------


def timeline() -> None:
    """The same requests under both, in the middle of a run: who waits, who answers, who stands still."""
    spec = "poisson:rate=3.2,requests=300,input=48-256,output=lognormal(160, 0.8, 512)"
    workload = replace_caps(generators.parse(spec, seed=4), 512)
    blocks, start_s, end_s = 110, 60.0, 68.0
    picture = Figure(figsize=(10, 5), layout="constrained")
    rows = picture.subplots(2, 2, sharex=True, height_ratios=(2, 1))
    for column, name in enumerate(("native", "proxima")):
        seen = watch(name, workload, blocks)
        shown = [key for key, tokens in seen.tokens_s.items() if tokens[-1] > start_s and seen.sent_s[key] < end_s]
        shown.sort(key=lambda key: (seen.sent_s[key], int(key)))
        _bars(rows[0][column], seen, shown)
        _pool(rows[1][column], seen, blocks, start_s, end_s)
        rows[0][column].set(title=f"{name}", xlim=(start_s, end_s), yticks=[])
        rows[1][column].set(xlabel="s", ylim=(0, blocks * 1.08))
    rows[0][0].set_ylabel("requests, in order of arrival")
    rows[1][0].set_ylabel("blocks in use")
    for color, label in ((GREY, "waits"), (BLUE, "answers"), (RED, "stands still: its blocks were taken")):
        rows[0][0].plot([], [], color=color, linewidth=5, label=label)
    picture.legend(*rows[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    save(picture, "timeline")


STALL_S = 0.15


def _bars(axes: Axes, seen: Watched, shown: Sequence[str]) -> None:
    for row, key in enumerate(shown):
        tokens = seen.tokens_s[key]
        _bar(axes, row, seen.sent_s[key], tokens[0], GREY)
        begin_s = tokens[0]
        for before_s, after_s in pairwise(tokens):
            if after_s - before_s > STALL_S:
                _bar(axes, row, begin_s, before_s, BLUE)
                _bar(axes, row, before_s, after_s, RED)
                begin_s = after_s
        _bar(axes, row, begin_s, tokens[-1], BLUE)
    axes.invert_yaxis()


def _bar(axes: Axes, row: int, begin_s: float, end_s: float, color: str) -> None:
    axes.plot([begin_s, end_s], [row, row], color=color, linewidth=2.6, solid_capstyle="butt")


def _pool(axes: Axes, seen: Watched, blocks: int, start_s: float, end_s: float) -> None:
    span = [index for index, now_s in enumerate(seen.times_s) if start_s <= now_s <= end_s][::4]
    axes.fill_between(
        [seen.times_s[i] for i in span], [seen.used[i] for i in span], color=BLUE, alpha=0.35, linewidth=0
    )
    axes.axhline(blocks, color="black", linewidth=0.8)


def replace_caps(workload: Workload, cap_tokens: int) -> Workload:
    return replace(workload, requests=tuple(replace(each, cap_tokens=cap_tokens) for each in workload.requests))


# -- backfill ----------------------------------------------------------------------------------------------------------


def backfill() -> None:
    """A long prompt that does not fit yet, and short requests behind it."""
    blocks = 100
    warm = [LabRequest(f"w{number}", 0.2 * number, 64, 32, 64) for number in range(40)]
    long_answer = [LabRequest("answer", 10.0, 640, 160, 200)]
    head = [LabRequest("head", 10.1, 1120, 48, 64)]
    short = [LabRequest(f"s{number}", 10.2 + 0.08 * number, 64, 32, 64) for number in range(14)]
    workload = Workload("backfill", (*warm, *long_answer, *head, *short))
    picture = Figure(figsize=(10, 2.9), layout="constrained")
    both = picture.subplots(1, 2, sharey=True, sharex=True)
    for axes, name in zip(both, ("native", "proxima"), strict=True):
        seen = watch(name, workload, blocks)
        _stack(axes, seen, ["answer", "head", *(each.request_id for each in short)], start_s=9.9)
        axes.axhline(blocks, color="black", linewidth=0.8)
        axes.axvline(10.1, color="black", linewidth=0.8, linestyle=":")
        starts_s = seen.tokens_s["head"][0]
        mean_s = sum(seen.tokens_s[each.request_id][0] - each.arrival_s for each in short) / len(short)
        axes.set(
            title=f"{name}: head starts {starts_s - 10.1:.2f} s, short ones {mean_s:.2f} s after they came", xlabel="s"
        )
    both[0].set(ylabel="blocks", xlim=(9.9, None), ylim=(0, blocks * 1.1))
    both[0].annotate("head arrives", (10.1, blocks), xytext=(3, 3), textcoords="offset points")
    picture.legend(*both[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    save(picture, "backfill")


def _stack(axes: Axes, seen: Watched, names: Sequence[str], start_s: float) -> None:
    # Where something changed, and the step before it.
    changed = [i for i in range(1, len(seen.held)) if seen.held[i] != seen.held[i - 1] and seen.times_s[i] >= start_s]
    span = sorted({each for i in changed for each in (i - 1, i)})
    times_s = [seen.times_s[i] for i in span]
    colors = {"answer": GREY, "head": RED}
    labels = {"answer": "an answer that runs", "head": "head: a long prompt", "s0": "short requests behind it"}
    axes.stackplot(
        times_s,
        [[seen.held[i].get(name, 0) for i in span] for name in names],
        colors=[colors.get(name, GREEN) for name in names],
        labels=[labels.get(name, f"_{name}") for name in names],
        linewidth=0.3,
        edgecolor="white",
    )


# -- forecast peak -----------------------------------------------------------------------------------------------------


def peak() -> None:
    """What those who run were forecast to hold at most, and what was held."""
    longer = traces.Changes(limit=200, rate_scale=0.4, input_scale=0.5, output_scale=4.0, cap_tokens=4096)
    workload = traces.read(Path(AZURE_CUT), longer)
    blocks, start_s, end_s = 1500, 0.0, 120.0
    seen = watch("proxima", workload, blocks)
    span = [index for index, now_s in enumerate(seen.times_s) if start_s <= now_s <= end_s][::40]
    times_s = [seen.times_s[i] for i in span]
    picture = Figure(figsize=(8, 2.8), layout="constrained")
    axes = picture.subplots()
    axes.fill_between(times_s, [seen.used[i] for i in span], color=BLUE, alpha=0.35, linewidth=0, label="in use")
    axes.plot(times_s, [seen.peak[i] for i in span], color=RED, linewidth=1, label="forecast peak of those who run")
    axes.axhline(blocks, color="black", linewidth=0.8)
    axes.annotate("pool", (start_s, blocks), xytext=(2, 3), textcoords="offset points")
    axes.set(xlabel="s", ylabel="blocks", xlim=(start_s, end_s), ylim=(0, blocks * 1.12))
    axes.legend(loc="lower right", frameon=False)
    save(picture, "forecast-peak")


# -- trade-off ---------------------------------------------------------------------------------------------------------


def trade() -> None:
    """What a longer age bound buys, and what it costs."""
    workload = traces.read(Path(AZURE_CUT), traces.Changes(rate_scale=1.5))
    setting = Setting(workload, MACHINE, blocks=1500, block_size=BLOCK, slo=TARGETS)
    native, simple = (run_arm(arm(name), setting) for name in ("native", "deadline-watermark"))
    bounds = (15, 30, 45, 60, 75, 90, 120, 1000)
    proxima = [run_arm(arm("proxima"), replace(setting, max_wait_s=float(bound))) for bound in bounds]

    def point(figures: dict[str, Any]) -> tuple[float, float]:
        return tuple(figures[key] / native[key] for key in ("e2e_p99_s", "goodput_rps"))

    picture = Figure(figsize=(6.5, 3.6), layout="constrained")
    axes = picture.subplots()
    axes.plot(*zip(*map(point, proxima), strict=True), marker="o", color=BLUE, label="proxima, by --max-wait-s")
    for bound, figures in zip(bounds, proxima, strict=True):
        p99, goodput = point(figures)
        print(f"{bound} s: {figures['attainment']:.1%}, {goodput:.2f} x, {figures['e2e_p99_s']:.1f} s, {p99:.2f} x")
        axes.annotate(f"{bound} s", point(figures), xytext=(4, -9), textcoords="offset points")
    axes.plot(*point(native), marker="s", color="black", linestyle="", label="native")
    axes.plot(*point(simple), marker="^", color=GREEN, linestyle="", label="deadline-watermark")
    axes.axvline(1.3, color="grey", linewidth=0.8, linestyle=":")
    axes.set(xlabel="E2E p99 against native", ylabel="goodput against native", xlim=(0.9, None), ylim=(0, None))
    axes.legend(loc="lower right", frameon=False)
    save(picture, "max-wait")


def save(picture: Figure, name: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    picture.savefig(FOLDER / f"{name}.svg", metadata={"Date": None})
    print(f"{name}.svg: {(FOLDER / f'{name}.svg').stat().st_size // 1024} KiB")


PICTURES: dict[str, Callable[[], None]] = {"timeline": timeline, "backfill": backfill, "peak": peak, "trade": trade}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PICTURES)} (default: all)")
    for name in parser.parse_args().names or PICTURES:
        PICTURES[name]()


if __name__ == "__main__":
    main()
