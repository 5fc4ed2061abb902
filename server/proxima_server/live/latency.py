"""Percentiles of the last minute, from the histograms that `/metrics` shows since the start."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from proxima_server.metrics.histogram import Histogram
from proxima_server.metrics.request_metrics import RequestMetrics

WINDOW_S = 60.0
SAMPLE_S = 10.0
"""How often the histograms are remembered when nobody looks: copies of some hundred numbers."""
PERCENTILES = (50, 95, 99)

Counts = list[int]
_KINDS: dict[str, Callable[[Any], Histogram]] = {
    "ttft_s": lambda of_class: of_class.ttft,
    "itl_s": lambda of_class: of_class.inter_token,
    "queue_s": lambda of_class: of_class.queue,
}


class RecentLatency:
    """Remembers the histograms of each time it was told to or asked; of all classes together."""

    def __init__(self, metrics: RequestMetrics, now_s: float) -> None:
        self._metrics = metrics
        self._seen: deque[tuple[float, dict[str, Counts]]] = deque()
        self.remember(now_s)

    def remember(self, now_s: float) -> None:
        """To be called every ``SAMPLE_S``, also while nobody looks: the window is at most that much over a minute."""
        self._seen.append((now_s, {kind: self._counts(kind) for kind in _KINDS}))
        while len(self._seen) > 1 and self._seen[1][0] <= now_s - WINDOW_S:
            self._seen.popleft()

    def report(self, now_s: float) -> dict[str, Any]:
        """Percentiles in seconds over the last minute, or since the start where that is shorter; ``window_s`` says."""
        self.remember(now_s)
        (since_s, before), (_, now) = self._seen[0], self._seen[-1]
        report: dict[str, Any] = {"window_s": round(now_s - since_s, 1)}
        for kind, counts in now.items():
            new = [count - old for count, old in zip(counts, before[kind], strict=True)]
            report[kind] = _summary(self._bounds(kind), new)
        return report

    def _bounds(self, kind: str) -> Sequence[float]:
        return _KINDS[kind](next(iter(self._metrics.classes()))).bounds

    def _counts(self, kind: str) -> Counts:
        return [sum(each) for each in zip(*(_KINDS[kind](one).counts for one in self._metrics.classes()), strict=True)]


def _summary(bounds: Sequence[float], counts: Sequence[int]) -> dict[str, float | int | None]:
    total = sum(counts)
    return {f"p{share}": quantile(bounds, counts, share / 100) for share in PERCENTILES} | {"count": total}


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """As Prometheus' histogram_quantile: linear within a bucket, at most the last bound; None without values."""
    rank, below = share * sum(counts), 0
    if not rank:
        return None
    for index, count in enumerate(counts):
        if count and below + count >= rank:
            if index == len(bounds):
                return bounds[-1]
            lower = bounds[index - 1] if index else 0.0
            return lower + (bounds[index] - lower) * (rank - below) / count
        below += count
    return bounds[-1]
