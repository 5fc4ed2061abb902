"""Writes the figures of README's table again, from the results that are kept under docs/benchmarks.

    .venv/bin/python scripts/readme_figures.py [--check]

A row whose first cell links to a comparison (`[...](docs/benchmarks/X.json)`, with `#ARM` where it is not about the
second arm, and `#ARM@LOAD` where there are several loads) begins a group, and all rows up to the next one with a preset
of its own get their figures from there: the medians of both arms, and the ratio with its interval. With enough rounds
it is bold where it is better beyond the interval and in italics where it is worse. What a row is about stands in its
second cell.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proxima_bench.intervals import VERDICT_ROUNDS
from proxima_bench.number_format import rounded

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
_SOURCE = re.compile(r"\]\((docs/benchmarks/[\w.-]+\.json)(?:#([^)]+))?\)")
_OWN_PRESET = re.compile(r"\W*`")
FIGURES = {
    "attained": ("attainment", True),
    "goodput": ("goodput_rps", True),
    "requests/s": ("qps", True),
    "output tokens/s": ("output_tokens_per_s", True),
    "TTFT mean": ("ttft_s.mean", False),
    "TTFT p50": ("ttft_s.p50", False),
    "TTFT p99": ("ttft_s.p99", False),
    "TPOT p50": ("tpot_s.p50", False),
    "E2E mean": ("e2e_s.mean", False),
    "E2E p99": ("e2e_s.p99", False),
    "longest stall p50": ("stall_s.p50", False),
    "longest stall p95": ("stall_s.p95", False),
    "longest stall of all": ("stall_s.max", False),
    "preemptions": ("preemptions", False),
}
"""Beginning of the second cell: the figure's name in a comparison, and whether higher is better."""


def rewritten(text: str, root: Path = ROOT) -> str:
    source: Mapping[str, Any] | None = None
    lines = []
    for line in text.splitlines(keepends=True):
        cells = line.strip().strip("|").split("|")
        if not line.startswith("|"):
            source = None
        elif len(cells) == 5:
            if found := _SOURCE.search(cells[0]):
                source = _arms(root / found[1], found[2])
            elif _OWN_PRESET.match(cells[0].strip()):
                source = None
            if source and (name := next((each for each in FIGURES if cells[1].strip().startswith(each)), None)):
                key, higher = FIGURES[name]
                cells[2:] = [f" {cell} " if cell else " " for cell in _cells(source, key, higher_is_better=higher)]
                line = f"|{'|'.join(cells)}|\n"  # noqa: PLW2901 - the line as it should be
        lines.append(line)
    return "".join(lines)


def _arms(path: Path, arm: str | None) -> dict[str, Any]:
    found = json.loads(path.read_text(encoding="utf-8"))
    name, _, load = (arm or found["arms"][1]["name"]).partition("@")
    (case,) = (each for each in found["cases"] if each["name"] == load)
    judged = found["rounds"] >= VERDICT_ROUNDS
    return {"judged": judged, "base": case["arms"][found["baseline"]], "arm": case["arms"][name]}


def _cells(source: Mapping[str, Any], key: str, *, higher_is_better: bool) -> list[str]:
    base, arm = source["base"][key], source["arm"][key]
    form = "{:.2f}".format if key == "attainment" else rounded
    ratio = _ratio(arm["ratio"], judged=source["judged"], higher_is_better=higher_is_better)
    return [form(base["median"]), form(arm["median"]), ratio]


def _ratio(ratio: Mapping[str, Any] | None, *, judged: bool, higher_is_better: bool) -> str:
    if ratio is None:
        return ""
    value = f"{ratio['value']:.2f}"
    if ratio["low"] is None:
        # Of two rounds there is no interval.
        return value
    interval = f"[{ratio['low']:.2f}, {ratio['high']:.2f}]"
    if judged and not ratio["low"] <= 1 <= ratio["high"]:
        better = (ratio["value"] > 1) == higher_is_better
        value = f"**{value}**" if better else f"*{value}*"
    return f"{value} {interval}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only say whether README is up to date")
    options = parser.parse_args()
    text = README.read_text(encoding="utf-8")
    if (new := rewritten(text)) != text:
        if options.check:
            sys.exit("README.md: its figures are not those of docs/benchmarks; run `make figures`")
        README.write_text(new, encoding="utf-8")
        print("README.md: figures written")


if __name__ == "__main__":
    main()
