"""Curves of a sweep as a picture."""

from __future__ import annotations

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

    # The same picture for the same figures, to the byte.
    rcParams["svg.hashsalt"] = "proxima"
    picture = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = picture.subplots(1, 2)
    for name, curve in report["arms"].items():
        points = sorted([*zip(report["loads"], curve["attainment"], strict=True), *map(tuple, curve["bisected"])])
        left.plot(*zip(*points, strict=True), marker="o", markersize=4, label=name)
        right.plot(report["loads"], curve["e2e_p99_s"], marker="o", markersize=4, label=name)
    left.axhline(0.9, color="grey", linewidth=0.8, linestyle=":")
    left.set(xlabel="load, multiples of the workload's rate", ylabel="attainment", ylim=(0, 1.02))
    right.set(xlabel="load, multiples of the workload's rate", ylabel="E2E p99, s", yscale="log")
    left.legend(fontsize="small")
    picture.suptitle(report["setting"]["sentence"], fontsize="small")
    try:
        picture.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    except OSError as error:
        raise ProximaError(f"{path}: cannot be written ({error.strerror})") from error
