"""What a metric is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Metric:
    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    unit: str
    """Unit of the value, for people: "seconds", "blocks", "1" for plain counts and flags."""
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets; the last one, +Inf, is not listed."""
    on_demand: bool = False
    """Its series appear with the first event or device they count: there would be too many, or none, before."""
