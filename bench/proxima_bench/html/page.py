"""Puts pictures and tables of results into one page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import yaml

from proxima_bench.html import legend, tables
from proxima_bench.html.plots import Plots, Texts
from proxima_bench.html.results import Result
from proxima_bench.intervals import VERDICT_ROUNDS

if TYPE_CHECKING:
    from jinja2 import Environment

LANGUAGES = ("en", "zh")


def page(results: Sequence[Result], language: str) -> str:
    """The whole HTML document."""
    texts = texts_of(language)
    return (
        environment()
        .get_template("page.html.j2")
        .render(t=texts, results=[_shown(result, texts, f"r{number}") for number, result in enumerate(results)])
    )


def environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("proxima_bench", "html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def texts_of(language: str) -> Texts:
    found: Texts = yaml.safe_load((files("proxima_bench.html") / "texts.yaml").read_text(encoding="utf-8"))[language]
    return found


def _shown(result: Result, texts: Texts, prefix: str) -> dict[str, Any]:
    plots, heaviest = Plots(result, texts, f"{prefix}-"), result.loads[-1]
    timelines = [(arm, svg) for arm in result.arms if (svg := plots.timeline(arm))]
    over_time = [plots.over_time(key) for key in ("waiting", "running", "kv_use", "device_utilisation")]
    exact = any(each.report.get("timeline") for each in result.measured)
    return {
        "id": prefix,
        "result": result,
        "legend": {arm: legend.sample(look) for arm, look in plots.looks.items()},
        "ratio_note": texts["ratio_note" if result.rounds >= VERDICT_ROUNDS else "ratio_note_few"].format(
            rounds=VERDICT_ROUNDS
        ),
        "findings": tables.found_by_sweep(result, texts),
        "tried": tables.tried(result),
        "summaries": [(load, tables.summary(result, load, texts)) for load in reversed(result.loads)],
        "attainment": plots.attainment(),
        "against_load": [
            plots.against_load("qps", "qps"),
            plots.against_load("ttft_p99", "ttft_s", "p99"),
            plots.against_load("e2e_p99", "e2e_s", "p99"),
        ],
        "latencies": [
            plots.distribution("ttft_s", result.ttft_s),
            plots.distribution("e2e_s", None),
            plots.distribution("stall_s", result.stall_s),
        ],
        "latency_detail": texts["latency_exact" if exact else "latency_quantiles"],
        "timelines": timelines,
        "over_time": over_time,
        "stalls": plots.stalls(),
        "stalled": tables.stalled(result, texts),
        "utilisation": tables.utilisation(result, heaviest, texts),
        "errors": tables.errors(result, texts),
        "details": json.dumps(result.details, indent=2, ensure_ascii=False),
    }
