"""The page of `proxima bench profile`: the steps of each arm's engine, before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from proxima_bench import machine
from proxima_bench.html import page as pages
from proxima_bench.html.picture import picture
from proxima_bench.html.plots import Texts
from proxima_bench.html.results import sentence
from proxima_bench.html.tables import Cell, Table
from proxima_bench.trace import Capture, Operator, Step
from proxima_config.percentiles import percentile

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DECODE, _PROMPT = "#007a61", "#e69f00"


def page(result: Mapping[str, Any], language: str) -> str:
    """The whole HTML document, of what the command found."""
    texts = pages.texts_of(language)
    captures = {arm: _capture(each) for arm, each in result["captures"].items()}
    longest_s = max(each.steps[-1].end_s for each in captures.values())
    most = max(step.prompt_tokens + step.decode_tokens for each in captures.values() for step in each.steps)
    return pages.environment().get_template("profile.html.j2").render(
        t=texts,
        sentence=sentence(result["load"]),
        machine=machine.sentence(result["machine"]),
        steps=[
            (arm, _steps(each, texts, longest_s, most, f"p{place}-"))
            for place, (arm, each) in enumerate(captures.items())
        ],
        summary=_summary(captures, texts),
        operators=[(arm, _operators(each, texts)) for arm, each in captures.items()],
        files=[f"{arm}/{Path(name).name}" for arm, names in result["files"].items() for name in names],
        decode_color=_DECODE,
        prompt_color=_PROMPT,
    )  # fmt: skip


def _capture(found: Mapping[str, Any]) -> Capture:
    steps, operators = [Step(**each) for each in found["steps"]], [Operator(**each) for each in found["operators"]]
    return Capture(found["duration_s"], steps, operators, found["device"])


def _steps(capture: Capture, texts: Texts, longest_s: float, most: int, prefix: str) -> str:
    """One bar for each step: as wide as it took, as high as what it computed."""

    def draw(axes: Axes) -> None:
        starts, widths = [each.start_s for each in capture.steps], [each.duration_s for each in capture.steps]
        decodes = [each.decode_tokens for each in capture.steps]
        style: dict[str, Any] = {"width": widths, "align": "edge", "linewidth": 0.4, "edgecolor": "white"}
        axes.bar(starts, decodes, color=_DECODE, **style)
        axes.bar(starts, [each.prompt_tokens for each in capture.steps], bottom=decodes, color=_PROMPT, **style)
        axes.set_xlim(0, longest_s * 1.01)
        axes.set_ylim(0, most * 1.05)
        axes.set_xlabel(texts["axis_capture"])
        axes.set_ylabel(texts["axis_step_tokens"])

    return picture(texts["title_steps"], draw, prefix, width=9.6, height=2.4)


def _summary(captures: Mapping[str, Capture], texts: Texts) -> Table:
    def row(key: str, values: Sequence[str]) -> tuple[str, list[Cell]]:
        return texts[key], [Cell(value) for value in values]

    each = list(captures.values())
    return Table(
        list(captures),
        [
            row("profile_steps", [str(len(one.steps)) for one in each]),
            row("profile_step_p50", [_ms(median(step.duration_s for step in one.steps)) for one in each]),
            row("profile_step_max", [_ms(max(step.duration_s for step in one.steps)) for one in each]),
            row("profile_forward", [f"{_forward_share(one):.0%}" for one in each]),
            row("profile_gap_p50", [_ms(median(one.gaps_s)) if one.gaps_s else "-" for one in each]),
            row("profile_gap_p99", [_ms(percentile(sorted(one.gaps_s), 99)) if one.gaps_s else "-" for one in each]),
            row("profile_busy", [f"{one.busy_share:.0%}" for one in each]),
            row("profile_decodes", [f"{fmean(step.decodes for step in one.steps):.1f}" for one in each]),
            row("profile_prompt_tokens", [str(sum(step.prompt_tokens for step in one.steps)) for one in each]),
            row("profile_decode_tokens", [str(sum(step.decode_tokens for step in one.steps)) for one in each]),
        ],
    )


def _forward_share(capture: Capture) -> float:
    return sum(step.forward_s for step in capture.steps) / sum(step.duration_s for step in capture.steps)


def _operators(capture: Capture, texts: Texts) -> Table:
    return Table(
        [texts["own_time"], texts["calls"]],
        [(each.name, [Cell(_ms(each.total_s)), Cell(str(each.calls))]) for each in capture.operators],
    )


def _ms(value_s: float) -> str:
    value_ms = value_s * 1000
    return f"{value_ms:.0f} ms" if value_ms >= 100 else f"{value_ms:.3g} ms"
