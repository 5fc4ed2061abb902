"""What a picture shows, taken from reports: curves as pairs of a time, a latency or a load and a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from proxima_bench.html.results import Measured

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}


def shares_up_to(measured: Sequence[Measured], key: str) -> tuple[Sequence[float], Sequence[float]] | None:
    """Of every request where they are known; else the percentiles that are."""
    timelines = [each.report["timeline"] for each in measured if each.report.get("timeline")]
    values = sorted(
        value
        for each in timelines
        for value, outcome in zip(each.get(key, ()), each["outcome"], strict=False)
        if value is not None and outcome == "completed"
    )
    if values:
        return values, [(place + 1) / len(values) for place in range(len(values))]
    if not measured:
        return None
    known = measured[0].report.get(key) or {}
    points = [(known[name], share) for name, share in QUANTILES.items() if known.get(name) is not None]
    return tuple(zip(*points, strict=True)) if len(points) > 1 else None  # type: ignore[return-value]


def counted_over_time(found: Mapping[str, Any], key: str) -> tuple[list[float], list[int]]:
    """How many wait for their first token, or stream, at each moment at which that changes."""
    changes: list[tuple[float, int]] = []
    for sent, ttft, e2e in zip(found["sent_s"], found["ttft_s"], found["e2e_s"], strict=True):
        end = sent + (e2e or 0)
        first = end if ttft is None else sent + ttft
        begin, finish = (sent, first) if key == "waiting" else (first, end)
        changes += [(begin, 1), (finish, -1)]
    changes.sort()
    times, counts, count = [0.0], [0], 0
    for at, change in changes:
        count += change
        times.append(at)
        counts.append(count)
    return times, counts


def figure_at(report: Mapping[str, Any], path: Sequence[str]) -> float | None:
    value: Any = report
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value if isinstance(value, int | float) else None
