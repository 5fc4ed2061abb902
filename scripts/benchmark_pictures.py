"""The pictures of README's measurements, drawn from the results that are kept under docs/benchmarks.

    .venv/bin/python scripts/benchmark_pictures.py

Writes docs/pictures/measured.svg from every comparison on a CPU (`*-cpu.json`). The same results give the same file, to
the byte. After a new measurement, replace its JSON and run it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from proxima_bench.html.results import Result, read
from proxima_bench.html.series import figure_at

ROOT = Path(__file__).resolve().parents[1]
RESULTS, FOLDER = ROOT / "docs" / "benchmarks", ROOT / "docs" / "pictures"
GREY, GREEN, BLUE, INK = "#8a94a3", "#007a61", "#0072b2", "#1c2430"
STYLE = {"svg.hashsalt": "proxima", "font.size": 8.5, "axes.spines.top": False, "axes.spines.right": False}

FIGURES = (
    ("attained, share of requests", ("attainment",), "{:.0%}"),
    ("longest stall of a stream, p95, s", ("stall_s", "p95"), "{:.2g}"),
    ("output tokens/s", ("output_tokens_per_s",), "{:.0f}"),
)


def color(arm: str) -> str:
    return {"native": GREY, "proxima": GREEN}.get(arm, BLUE)


@rc_context(STYLE)
def measured() -> None:
    """One group of bars for each comparison: medians, a dot for each round."""
    found = [each for path in sorted(RESULTS.glob("*-cpu.json")) if (each := read(path)).kind == "compare"]
    rows = [(result, arm) for result in found for arm in result.arms]
    picture = Figure(figsize=(10, 0.9 + 0.3 * len(rows) + 0.22 * len(found)), layout="constrained")
    panels = picture.subplots(1, len(FIGURES), sharey=True)
    places = _places(found)
    for axes, (title, path, form) in zip(panels, FIGURES, strict=True):
        for (result, arm), place in zip(rows, places, strict=True):
            _bar(axes, place, result, arm, path, form)
        axes.set_title(title, fontsize=9, loc="left", color=INK)
        axes.set_xlim(0, axes.get_xlim()[1] * 1.16)
        axes.grid(axis="x", color="#e3e7ec", linewidth=0.7)
        axes.set_axisbelow(True)
        axes.tick_params(axis="y", length=0)
    panels[0].set_yticks(places, [arm for _, arm in rows])
    for result in found:
        first = places[rows.index((result, result.arms[0]))]
        panels[0].annotate(
            _name(result), (0, first + 0.68), color=INK, weight="bold", annotation_clip=False, va="center"
        )
    panels[0].set_ylim(min(places) - 0.7, max(places) + 1.1)
    save(picture, "measured")


def _places(found: Sequence[Result]) -> list[float]:
    """From the top down, with room for a name above each group."""
    places, at = [], 0.0
    for result in found:
        at -= 0.75
        for _ in result.arms:
            places.append(at)
            at -= 1.0
    return places


def _bar(axes: Axes, place: float, result: Result, arm: str, path: Sequence[str], form: str) -> None:
    values = [value for each in result.of(arm, result.loads[-1]) if (value := figure_at(each.report, path)) is not None]
    if not values:
        return
    axes.barh(place, median(values), height=0.72, color=color(arm), alpha=0.88)
    axes.plot(values, [place] * len(values), ".", color=INK, markersize=3.5)
    axes.annotate(
        form.format(median(values)), (max(values), place), xytext=(5, 0), textcoords="offset points", va="center"
    )


def _name(result: Result) -> str:
    load = result.details
    return f"{load['preset'] or result.name}: {load['requests']} requests, {load['arrivals']}"


def save(picture: Figure, name: str) -> None:
    picture.savefig(FOLDER / f"{name}.svg", metadata={"Date": None})
    print(f"{name}.svg: {(FOLDER / f'{name}.svg').stat().st_size // 1024} KiB")


if __name__ == "__main__":
    measured()
