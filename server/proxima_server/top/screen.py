"""One document as a screen of text; all that matters fits into 80 by 24."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

Document = dict[str, Any]

_PHASE_STYLE = {
    "decode": "green",
    "prefill": "cyan",
    "blocked": "yellow",
    "yielded": "magenta",
    "swapped": "magenta",
    "door": "bright_black",
}
_HEAD_LINES = 6
"""Above the rows of requests, with the table's own heading, besides the bars of the pools and the line of swaps."""
_ID_CHARS = 10


def screen(document: Document, height: int | None = None, width: int = 80) -> RenderableType:
    """As many requests as `height` lines have room for; all of them without it."""
    pools = document["ranks"]
    swaps = [] if document["swap"] is None else [_swaps(document["swap"])]
    room = None if height is None else max(1, height - _HEAD_LINES - max(1, len(pools)) - len(swaps))
    return Group(
        _title(document),
        _load(document),
        *([_pool(rank, width) for rank in pools] or [_no_pool(document["gateway"])]),
        *swaps,
        _latency(document),
        _counts(document),
        _requests(document, room),
    )


def _title(document: Document) -> Text:
    gateway = document["gateway"]
    line = Text.assemble(("Proxima ", "bold"), gateway["model"], ("  " + gateway["scheduler"], "dim"), "  ")
    if gateway["draining"]:
        left = f"{gateway['drain_remaining_requests']} left, {gateway['drain_remaining_s']:.0f} s"
        line.append(f" DRAINING: {left} ", "black on yellow")
    elif gateway["failure"]:
        line.append(f" {gateway['failure']} ", "white on red")
    elif gateway["ready"]:
        line.append("ready", "green")
    else:
        line.append(gateway["phase"], "yellow")
    if gateway["policy"]["state"] == "degraded":
        line.append("  policy degraded", "yellow")
    line.append(f"  up {_span(gateway['uptime_s'])}", "dim")
    line.truncate(200)
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _load(document: Document) -> Text:
    engine = document["engine"]
    waiting = engine["waiting"]
    blocked = None if waiting is None else waiting.get("blocks", 0) + waiting.get("forecast", 0)
    return _figures(
        ("running", engine["running"]),
        ("waiting", _sum(waiting)),
        ("blocked", blocked),
        ("door", document["door"]["waiting"]),
        ("tokens/s", _rounded(engine["output_tokens_per_s"], 0)),
        ("done/s", _rounded(engine["finished_per_s"], 2)),
    )


def _pool(rank: Document, width: int) -> Text:
    total, used, peak = rank["blocks_total"], rank["blocks_used"], rank["blocks_peak"]
    cells = max(10, width - 48)
    full = round(cells * used / total) if total else 0
    ahead = max(0, (round(cells * peak / total) if total else 0) - full)
    share = 100 * used / total if total else 0
    return Text.assemble(
        f"KV {rank['rank']:<4} ",
        ("█" * full, "blue"),
        ("▒" * ahead, "yellow"),
        ("·" * (cells - full - ahead), "dim"),
        f" {used:>6}/{total} {share:3.0f} %",
        (f"  peak {peak}", "yellow" if peak > used else "dim"),
    )


def _no_pool(gateway: Document) -> Text:
    if gateway["phase"] == "starting":
        return Text("KV      unknown: the engine is loading", "dim")
    why = "this scheduler does not tell" if gateway["phase"] == "ready" else "there is no engine"
    return Text(f"KV      unknown: {why}", "dim")


def _swaps(swap: Document) -> Text:
    return _figures(
        ("swapped", swap["requests"]),
        ("host blocks", f"{swap['host_blocks_used']}/{swap['host_blocks_total']}"),
        ("out", _size(swap["bytes_total"].get("out", 0))),
        ("in", _size(swap["bytes_total"].get("in", 0))),
        ("failed", sum(swap["failures_total"].values())),
    )


def _latency(document: Document) -> Text:
    latency = document["latency"]
    line = Text()
    for name, kind, scale, unit in (("TTFT", "ttft_s", 1, "s"), ("ITL", "itl_s", 1000, "ms")):
        values = [_scaled(latency[kind][share], scale) for share in ("p50", "p95", "p99")]
        line.append(f"{name} ", "dim").append(" / ".join(values)).append(f" {unit}   ", "dim")
    return line.append("p50 / p95 / p99", "dim")


def _counts(document: Document) -> Text:
    engine, door = document["engine"], document["door"]
    return _figures(
        ("yields", _sum(engine["yields_total"])),
        ("preempted", engine["preemptions_total"]),
        ("backfills", engine["backfills_total"]),
        ("rejected", sum(door["rejected_total"].values())),
        ("expired", sum(door["deadlines_expired_total"].values())),
    )


def _requests(document: Document, room: int | None) -> RenderableType:
    rows = document["requests"]
    if not rows:
        return Text("\nNo requests.", "dim")
    # The last line says how many there is no room for.
    cut = rows if room is None or len(rows) <= room else rows[: room - 1]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), expand=False)
    for name in ("request", "class", "phase"):
        table.add_column(name, no_wrap=True, header_style="dim")
    for name in ("age", "prompt", "output", "blocks", "slack", "start"):
        table.add_column(name, justify="right", no_wrap=True, header_style="dim")
    for row in cut:
        table.add_row(*_cells(row))
    left = len(rows) - len(cut) + document["requests_left_out"]
    return Group(table, Text(f"and {left} more", "dim")) if left else table


def _cells(row: Document) -> list[str | Text]:
    # Why somebody waits says also that it does; that it has yielded is said instead.
    word = row["phase"] if row["phase"] in ("yielded", "swapped") else row["reason"] or row["phase"]
    phase = Text(word, _PHASE_STYLE.get(row["phase"], ""))
    late = row["slack_s"] is not None and row["slack_s"] < 0
    return [
        str(row["id"] or "")[-_ID_CHARS:],
        row["class"],
        phase,
        f"{row['age_s']:.1f}",
        str(row["prompt_tokens"]),
        str(row["output_tokens"]),
        str(row["blocks"]),
        Text(_scaled(row["slack_s"], 1), "red" if late else ""),
        _scaled(row["start_s"], 1),
    ]


def _figures(*figures: tuple[str, object]) -> Text:
    line = Text()
    for name, value in figures:
        line.append(f"{name} ", "dim").append(f"{'-' if value is None else value}   ", "bold")
    line.no_wrap = True
    return line


def _sum(counts: Mapping[str, int] | None) -> int | None:
    return None if counts is None else sum(counts.values())


def _rounded(value: float | None, digits: int) -> str | None:
    return None if value is None else f"{value:.{digits}f}"


def _scaled(value: float | None, scale: float) -> str:
    if value is None:
        return "-"
    scaled = value * scale
    return f"{scaled:.0f}" if abs(scaled) >= 100 else f"{scaled:.2f}" if abs(scaled) < 10 else f"{scaled:.1f}"


def _size(size: float) -> str:
    power = min(4, (len(str(int(size))) - 1) // 3)
    scaled = size / 1000**power
    return f"{scaled:.0f} B" if not power else f"{scaled:.{1 if scaled < 100 else 0}f} {'kMGT'[power - 1]}B"


def _span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
