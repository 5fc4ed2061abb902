"""A comparison for people (tables in the terminal or in Markdown) and for scripts (JSON)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from proxima_bench import machine
from proxima_bench.arms import Arm
from proxima_bench.comparison import FIGURES, Case, Comparison, Figure
from proxima_bench.intervals import CONFIDENCE, FEWEST_ROUNDS, VERDICT_ROUNDS, Ratio
from proxima_bench.number_format import rounded

_GOOD, _BAD = "better", "worse"


def as_json(comparison: Comparison) -> dict[str, Any]:
    return {
        "machine": machine.describe(),
        "baseline": comparison.baseline.name,
        "rounds": comparison.rounds,
        "confidence": CONFIDENCE,
        "failure": comparison.failure or None,
        "saturation_rps": comparison.saturation_rps,
        "arms": [{"name": arm.name, "kind": arm.kind, "flags": arm.flags, "url": arm.url} for arm in comparison.arms],
        "cases": [_case_as_json(comparison, case) for case in comparison.cases],
        "warnings": warnings(comparison),
        "measurements": [
            {"case": each.case, "arm": each.arm, "round": each.round, "report": each.measurement.report}
            for each in comparison.samples
        ],
    }


def show(comparison: Comparison, console: Console) -> None:
    console.print(f"{_headline(comparison)}\n{_machine(comparison)}", highlight=False)
    for case in comparison.cases:
        table = Table(*_header(comparison), title=case.name or None, title_justify="left")
        for column in table.columns[1:]:
            column.justify = "right"
        for row in _rows(comparison, case):
            table.add_row(*row)
        console.print(table, highlight=False)
    for losses in _losses(comparison):
        console.print(losses, highlight=False)
    for warning in warnings(comparison):
        console.print(Text(f"warning: {warning}", style="yellow"))


def markdown(comparison: Comparison) -> str:
    """For a README or an issue."""
    lines = [f"{_headline(comparison)}.", "", f"{_machine(comparison)}.", ""]
    for case in comparison.cases:
        if case.name:
            lines += [f"**{case.name}**", ""]
        header = _header(comparison)
        lines += [_line(header), _line(["---", *["---:"] * (len(header) - 1)])]
        lines += [_line(row) for row in _rows(comparison, case)]
        lines.append("")
    lines += [f"{losses}." for losses in _losses(comparison)]
    lines += [f"Warning: {warning}." for warning in warnings(comparison)]
    return "\n".join(lines).rstrip() + "\n"


def warnings(comparison: Comparison) -> list[str]:
    """What a sceptic would ask about, each once."""
    found = []
    if comparison.rounds < FEWEST_ROUNDS:
        found.append(f"fewer than {FEWEST_ROUNDS} rounds: there are no intervals, and a difference may be chance")
    for case in comparison.cases:
        pools = {arm.name: _kv_blocks(comparison, case, arm) for arm in comparison.arms}
        if len({blocks for blocks in pools.values() if blocks is not None}) > 1:
            sizes = ", ".join(f"{name} {blocks}" for name, blocks in pools.items())
            found.append(f"the arms have different numbers of KV blocks ({sizes})")
    for sample in comparison.samples:
        found += [f"{sample.arm}: {warning}" for warning in sample.measurement.report["warnings"]]
    return list(dict.fromkeys(found))


def _kv_blocks(comparison: Comparison, case: Case, arm: Arm) -> float | None:
    return comparison.median(case, arm, Figure("kv_blocks", "", ("server", "kv_blocks")))


def _case_as_json(comparison: Comparison, case: Case) -> dict[str, Any]:
    return {
        "name": case.name,
        "load": case.load.model_dump(mode="json", exclude={"compare"}),
        "arms": {
            arm.name: {
                figure.key: {
                    "median": comparison.median(case, arm, figure),
                    "rounds": comparison.values(case, arm, figure),
                    "ratio": _ratio_as_json(comparison.ratio(case, arm, figure)),
                }
                for figure in FIGURES
            }
            for arm in comparison.arms
        },
    }


def _ratio_as_json(ratio: Ratio | None) -> dict[str, float | None] | None:
    return None if ratio is None else {"value": ratio.value, "low": ratio.low, "high": ratio.high}


def _headline(comparison: Comparison) -> str:
    load = comparison.cases[0].load
    name = f"{load.preset}: " if load.preset else ""
    if comparison.saturation_rps is None:
        arrivals = load.shape.describe()
    else:
        arrivals = f"trace at multiples of {comparison.saturation_rps:.2f}/s"
    return (
        f"{name}{load.requests} requests, {arrivals}, {load.lengths} lengths, attained with TTFT ≤ "
        f"{load.slo_ttft_s:g} s and stall ≤ {load.slo_stall_s:g} s; {_rounds(comparison.rounds)}"
    )


def _machine(comparison: Comparison) -> str:
    """What this ran on, which is not where servers are that run already."""
    here = machine.sentence(machine.describe())
    urls = [arm.name for arm in comparison.arms if arm.url]
    if not urls:
        return here
    return f"client: {here}" if len(urls) == len(comparison.arms) else f"{here}; not of {', '.join(urls)}"


def _rounds(rounds: int) -> str:
    if rounds == 1:
        return "one round"
    intervals = f", ratios with {CONFIDENCE:.0%} intervals" if rounds >= FEWEST_ROUNDS else ""
    return f"{rounds} interleaved rounds, medians{intervals}"


def _header(comparison: Comparison) -> list[str]:
    return [
        "",
        *(arm.name for arm in comparison.arms),
        *(f"{arm.name} / {comparison.baseline.name}" for arm in comparison.arms[1:]),
    ]


def _rows(comparison: Comparison, case: Case) -> Iterable[list[str]]:
    for figure in FIGURES:
        medians = [comparison.median(case, arm, figure) for arm in comparison.arms]
        if all(value is None for value in medians):
            continue
        ratios = [_ratio(comparison.ratio(case, arm, figure)) for arm in comparison.arms[1:]]
        yield [_label(figure), *(rounded(value) for value in medians), *ratios]


def _label(figure: Figure) -> str:
    return f"{figure.label} {'↑' if figure.higher_is_better else '↓'}"


def _losses(comparison: Comparison) -> Iterable[str]:
    """For each arm, what it wins and what it loses beyond its interval; a report that only shows wins is none.

    Nothing with few rounds: the interval of three is hardly more than their range, and chance passes for a difference.
    """
    if comparison.rounds < VERDICT_ROUNDS:
        return
    for arm in comparison.arms[1:]:
        sides: dict[str, list[str]] = {_GOOD: [], _BAD: []}
        for case in comparison.cases:
            for figure in FIGURES:
                ratio = comparison.ratio(case, arm, figure)
                if ratio is not None and ratio.differs:
                    side = _GOOD if (ratio.value > 1) == figure.higher_is_better else _BAD
                    sides[side].append(f"{figure.label}{f' at {case.name}' if case.name else ''}")
        parts = [f"{side} in {', '.join(names) or 'nothing'}" for side, names in sides.items()]
        yield f"{arm.name} against {comparison.baseline.name}, beyond the interval: {'; '.join(parts)}"


def _ratio(ratio: Ratio | None) -> str:
    if ratio is None:
        return "-"
    return f"{ratio.value:.2f}" if ratio.low is None else f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
