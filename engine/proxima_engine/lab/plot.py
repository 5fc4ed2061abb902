"""Curves of a sweep as a picture."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

from proxima_config.errors import ProximaError, UsageError

_FORMATS = {".png", ".svg", ".pdf"}


def check(path: Path) -> None:
    """Raises UsageError for a file that could not be drawn."""
    if path.suffix not in _FORMATS:
        raise UsageError(f"--plot must end with {', '.join(sorted(_FORMATS))}, not {path}")


def draw(report: dict[str, Any], path: Path) -> None:
    """Attainment and E2E p99 against load, all arms; ``report`` is what `sweep` prints as JSON."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    # The same picture for the same figures, to the byte.
    rcParams["svg.hashsalt"] = "proxima"
    picture = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = picture.subplots(1, 2)
    for (name, curve), marker in zip(report["arms"].items(), cycle("os^vDP<>Xp"), strict=False):
        points = sorted([*zip(report["loads"], curve["attainment"], strict=True), *map(tuple, curve["bisected"])])
        cheats = curve["figures"][0]["cheats"]
        look: dict[str, Any] = {
            "marker": marker,
            "markersize": 4,
            "linestyle": "--" if cheats else "-",
            # Arms that coincide stay visible through each other.
            "alpha": 0.8,
            "linewidth": 2.6 if name == "proxima" else 1.2,
            "zorder": 3 if name == "proxima" else 2,
        }
        left.plot(*zip(*points, strict=True), label=f"{name} (cheats)" if cheats else name, **look)
        right.plot(report["loads"], curve["e2e_p99_s"], **look)
    left.axhline(0.9, color="grey", linewidth=0.8, linestyle=":")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        axes.set_xlabel("load, multiples of the workload's rate")
    left.set(ylabel="attainment", ylim=(0, 1.02))
    right.set(ylabel="E2E p99, s", yscale="log")
    right.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    right.yaxis.set_major_formatter("{x:g}")
    right.yaxis.set_minor_formatter(NullFormatter())
    picture.legend(loc="outside right center", frameon=False, fontsize="small")
    picture.suptitle(report["setting"]["sentence"], fontsize="small")
    try:
        picture.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    except OSError as error:
        raise ProximaError(f"{path}: cannot be written ({error.strerror})") from error
