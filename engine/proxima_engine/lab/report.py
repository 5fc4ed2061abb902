"""Arms side by side, for people."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from proxima_engine.lab.figures import Figures

_ROWS = (
    ("attainment", "attained", ".1%"),
    ("goodput_rps", "goodput, requests/s", ".2f"),
    ("qps", "requests/s", ".2f"),
    ("output_tokens_per_s", "tokens/s", ".0f"),
    ("ttft_p50_s", "TTFT p50, s", ".2f"),
    ("ttft_p99_s", "TTFT p99, s", ".2f"),
    ("e2e_mean_s", "E2E mean, s", ".2f"),
    ("e2e_p99_s", "E2E p99, s", ".2f"),
    ("stall_p95_s", "stall p95, s", ".2f"),
    ("stall_max_s", "stall max, s", ".2f"),
    ("preemptions", "preemptions", "d"),
    ("recomputed_tokens", "recomputed tokens", "d"),
    ("forecasts_checked", "forecasts checked", "d"),
    ("forecasts_exceeded", "of them exceeded", "d"),
    ("pool_use_mean", "pool in use", ".0%"),
    ("running_mean", "running requests", ".1f"),
    ("schedule_us_mean", "scheduling, µs a step", ".0f"),
)


def show(report: dict[str, Any], console: Console) -> None:
    """``report`` is what `compare` prints as JSON."""
    console.print(report["setting"]["sentence"], highlight=False)
    arms: dict[str, Figures] = report["arms"]
    table = Table("")
    for name in arms:
        table.add_column(name, justify="right")
    for key, label, form in _ROWS:
        if any(figures[key] is not None for figures in arms.values()):
            table.add_row(label, *(_cell(figures[key], form) for figures in arms.values()))
    console.print(table, highlight=False)
    for name in (name for name, figures in arms.items() if figures["cheats"]):
        console.print(f"{name} knows every answer's true length, which nobody does in real life.", highlight=False)
    if refused := max(figures["refused"] for figures in arms.values()):
        console.print(f"{refused} prompts are longer than the engine's context and were refused.", highlight=False)


def show_sweep(report: dict[str, Any], console: Console) -> None:
    """Attainment against load, one row an arm; ``report`` is what `sweep` prints as JSON."""
    console.print(report["setting"]["sentence"], highlight=False)
    table = Table("arm", title="attainment at multiples of the workload's rate", title_justify="left")
    for load in report["loads"]:
        table.add_column(f"{load:g}x", justify="right")
    table.add_column("attains 90 % up to", justify="right")
    for name, curve in report["arms"].items():
        limit = curve["load_at_90"]
        cells = (_cell(value, ".1%") for value in curve["attainment"])
        table.add_row(name, *cells, "-" if limit is None else f"{limit:.2f}x")
    console.print(table, highlight=False)


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
