"""What a curve of load against attainment and throughput says: capacity, knee, peak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

FOLLOWS = 0.9
"""Share of what arrives that has to end meanwhile, for throughput to follow the load."""


@dataclass(frozen=True)
class Point:
    """One arm at one offered rate."""

    rate_rps: float
    attainment: float
    qps: float
    followed: float
    """Requests that ended per request that arrived, in the second half of the time during which requests arrived."""

    @classmethod
    def of(cls, rate_rps: float, report: Mapping[str, Any]) -> Point:
        return cls(rate_rps, report["attainment"], report["qps"] or 0.0, followed(report["timeline"]))


@dataclass(frozen=True)
class Capacity:
    capacity_rps: float | None
    """Highest rate at which the target is attained; between two measured rates by a straight line. None where it is
    missed from the beginning."""
    capacity_is_bound: bool
    """The target is attained at every rate: capacity is at least that."""
    knee_rps: float | None
    """Highest rate that throughput still follows."""
    peak_rps: float
    """Highest throughput at any of the rates: the closed loop, which only one arm gets, is none of them."""


def capacity(points: Sequence[Point], target: float) -> Capacity:
    """Of at least one point."""
    ordered = sorted(points, key=lambda point: point.rate_rps)
    knee = None
    for point in ordered:
        if point.followed < FOLLOWS:
            break
        knee = point.rate_rps
    return Capacity(
        capacity_rps=_last_above(ordered, target),
        capacity_is_bound=all(point.attainment >= target for point in ordered),
        knee_rps=knee,
        peak_rps=max(point.qps for point in ordered),
    )


def next_rate(points: Sequence[Point], target: float) -> float | None:
    """The middle of the two rates between which attainment first falls below the target; None where it does not."""
    ordered = sorted(points, key=lambda point: point.rate_rps)
    for below, above in pairwise(ordered):
        if below.attainment >= target > above.attainment:
            return (below.rate_rps + above.rate_rps) / 2
    return None


def followed(timeline: Mapping[str, Sequence[Any]]) -> float:
    """A queue that grows ends fewer requests than arrive. Requests that failed end too, and are not counted."""
    sent = timeline["sent_s"]
    if not sent or sent[-1] <= 0:
        return 1.0
    half, last = sent[-1] / 2, sent[-1]
    arrived = sum(half < each <= last for each in sent)
    ended = sum(
        half < at + took <= last
        for at, took, outcome in zip(sent, timeline["e2e_s"], timeline["outcome"], strict=True)
        if took is not None and outcome == "completed"
    )
    return ended / arrived if arrived else 1.0


def _last_above(ordered: Sequence[Point], target: float) -> float | None:
    if not ordered or ordered[0].attainment < target:
        return None
    for below, above in pairwise(ordered):
        if above.attainment < target:
            share = (below.attainment - target) / (below.attainment - above.attainment)
            return below.rate_rps + (above.rate_rps - below.rate_rps) * share
    return ordered[-1].rate_rps
