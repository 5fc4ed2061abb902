"""The tables of a report, as text in cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from proxima_bench.html.results import Measured, Result
from proxima_bench.intervals import VERDICT_ROUNDS
from proxima_bench.number_format import rounded

Texts = Mapping[str, str]


@dataclass(frozen=True)
class Cell:
    text: str
    note: str = ""
    """The interval below a ratio."""
    kind: str = ""
    """`better` or `worse` where a ratio of enough rounds differs beyond its interval."""


@dataclass(frozen=True)
class Table:
    head: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]


@dataclass(frozen=True)
class _Row:
    key: str
    path: tuple[str, ...]
    form: str
    figure: str
    """Its name in the ratios of a comparison."""
    higher_is_better: bool = False


_ROWS = (
    _Row("attainment", ("attainment",), ".1%", "attainment", higher_is_better=True),
    _Row("goodput_rps", ("goodput_rps",), ".2f", "goodput_rps", higher_is_better=True),
    _Row("qps", ("qps",), ".2f", "qps", higher_is_better=True),
    _Row("output_tokens_per_s", ("output_tokens_per_s",), ".1f", "output_tokens_per_s", higher_is_better=True),
    _Row("ttft_p50", ("ttft_s", "p50"), ".3g", "ttft_s.p50"),
    _Row("ttft_p99", ("ttft_s", "p99"), ".3g", "ttft_s.p99"),
    _Row("tpot_p50", ("tpot_s", "p50"), ".3g", "tpot_s.p50"),
    _Row("e2e_mean", ("e2e_s", "mean"), ".3g", "e2e_s.mean"),
    _Row("e2e_p99", ("e2e_s", "p99"), ".3g", "e2e_s.p99"),
    _Row("stall_p95", ("stall_s", "p95"), ".3g", "stall_s.p95"),
    _Row("stall_max", ("stall_s", "max"), ".3g", "stall_s.max"),
    _Row("preemptions", ("server", "preemptions"), ".0f", ""),
)
_NONE = "-"
_GAUGES = ("device_utilisation", "kv_use", "running")


def summary(result: Result, load: float, texts: Texts) -> Table:
    """Medians of each arm under one load, and ratios to the baseline where the file has them."""
    ratios = result.ratios.get(load, {})
    compared = [arm for arm in result.arms if ratios and arm != result.baseline]
    rows = []
    for row in _ROWS:
        values = {arm: _median(result.of(arm, load), row.path) for arm in result.arms}
        if all(value is None for value in values.values()):
            continue
        cells = [Cell(_NONE if value is None else f"{value:{row.form}}") for value in values.values()]
        cells += [
            _ratio((ratios[arm].get(row.figure) or {}).get("ratio"), row, judged=result.rounds >= VERDICT_ROUNDS)
            for arm in compared
        ]
        rows.append((texts[f"fig_{row.key}"], cells))
    return Table([*result.arms, *(f"{arm} / {result.baseline}" for arm in compared)], rows)


def found_by_sweep(result: Result, texts: Texts) -> Table | None:
    arms = result.findings.get("arms")
    if not arms:
        return None
    target = f"{result.findings['target']:.0%}"
    rows = [
        (texts["capacity"].format(target=target), [_capacity(arms[arm], texts) for arm in result.arms]),
        (texts["knee"], [_known(arms[arm]["knee_rps"]) for arm in result.arms]),
        (texts["peak"], [_known(arms[arm]["peak_rps"]) for arm in result.arms]),
    ]
    return Table(result.arms, rows)


def tried(result: Result) -> Table | None:
    """What a search for settings measured once each, best first."""
    trials = result.tune.get("trials")
    if not trials:
        return None
    ordered = sorted(trials.items(), key=lambda item: -item[1]["value"])
    rows = [
        (name, [Cell(rounded(each["value"]) if each["status"] == "measured" else each["status"])])
        for name, each in ordered
    ]
    return Table([result.tune["objective"]], rows)


def stalled(result: Result, texts: Texts) -> Table | None:
    """Streams with a gap above the target, at each load."""
    rows = []
    for load in result.loads:
        cells = []
        for arm in result.arms:
            gaps = [
                gap
                for each in result.of(arm, load)
                for gap in (each.report.get("timeline") or {}).get("stall_s", ())
                if gap is not None
            ]
            above = sum(gap > result.stall_s for gap in gaps)
            cells.append(Cell(f"{above} {texts['of']} {len(gaps)}" if gaps else _NONE))
        if any(cell.text != _NONE for cell in cells):
            rows.append((texts["stalled_streams"] if len(result.loads) == 1 else rounded(load), cells))
    return Table(result.arms, rows) if rows else None


def utilisation(result: Result, load: float, texts: Texts) -> Table | None:
    rows = []
    for gauge in _GAUGES:
        cells = [_gauge(result.of(arm, load), gauge, texts) for arm in result.arms]
        if any(cell.text != _NONE for cell in cells):
            rows.append((texts[f"util_{gauge}"], cells))
    return Table(result.arms, rows) if rows else None


def errors(result: Result, texts: Texts) -> Table | None:
    """Errors by code and arm, all loads and rounds together; None where there were none."""
    counts = {arm: Counter[str]() for arm in result.arms}
    offered = dict.fromkeys(result.arms, 0)
    for each in result.measured:
        counts[each.arm].update(each.report.get("errors") or {})
        offered[each.arm] += each.report["requests"]["offered"]
    codes = sorted({code for each in counts.values() for code in each})
    if not codes:
        return None
    return Table(
        result.arms,
        [(code, [Cell(f"{counts[arm][code]} {texts['of']} {offered[arm]}") for arm in result.arms]) for code in codes],
    )


def _ratio(ratio: Mapping[str, float | None] | None, row: _Row, *, judged: bool) -> Cell:
    if not ratio or ratio["value"] is None:
        return Cell(_NONE)
    low, high = ratio["low"], ratio["high"]
    if low is None or high is None:
        return Cell(f"{ratio['value']:.2f}")
    differs = judged and not low <= 1 <= high
    kind = ("better" if (ratio["value"] > 1) == row.higher_is_better else "worse") if differs else ""
    return Cell(f"{ratio['value']:.2f}", f"[{low:.2f}, {high:.2f}]", kind)


def _capacity(found: Mapping[str, Any], texts: Texts) -> Cell:
    if found["capacity_rps"] is None:
        return Cell(texts["not_reached"])
    value = rounded(found["capacity_rps"])
    return Cell(f"{texts['above']} {value}" if found.get("capacity_is_bound") else value)


def _known(value: float | None) -> Cell:
    return Cell(_NONE if value is None else rounded(value))


def _gauge(measured: Sequence[Measured], gauge: str, texts: Texts) -> Cell:
    found = [value for each in measured if (value := (each.report.get("server") or {}).get(gauge))]
    if not found:
        return Cell(_NONE)
    form = ".1f" if gauge == "running" else ".0%"
    mean = fmean(each["mean"] for each in found if each["mean"] is not None)
    highest = max((each["max"] for each in found if "max" in each), default=None)
    return Cell(
        f"{mean:{form}}",
        "" if highest is None else f"{texts['maximum']} {highest:{'.0f' if gauge == 'running' else form}}",
    )


def _median(measured: Sequence[Measured], path: Sequence[str]) -> float | None:
    values = []
    for each in measured:
        value: Any = each.report
        for part in path:
            value = value.get(part) if isinstance(value, Mapping) else None
        if isinstance(value, int | float):
            values.append(value)
    return median(values) if values else None
