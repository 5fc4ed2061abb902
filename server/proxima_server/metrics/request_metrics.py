"""Latencies and tokens of requests by class, and what each API key used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from prometheus_client.registry import Collector

from proxima_config.hints import RequestClass
from proxima_config.metrics import requests as catalogue
from proxima_config.metrics.metric import Metric
from proxima_server.metrics.families import Family, family, histogram_family
from proxima_server.metrics.histogram import Histogram

MAX_KEYS = 200
"""Keys with series of their own; a gateway with more of them shows the others as OTHER."""
OTHER = "other"

_CLASSES = frozenset(each.value for each in RequestClass)


class ClassMetrics:
    """Of one class. Attributes are bumped in place: some of them once per token."""

    __slots__ = ("cached_tokens", "inter_token", "output_tokens", "prompt_tokens", "queue", "total", "ttft")

    def __init__(self) -> None:
        self.queue = Histogram(catalogue.QUEUE_TIME.buckets)
        self.ttft = Histogram(catalogue.TTFT.buckets)
        self.inter_token = Histogram(catalogue.INTER_TOKEN.buckets)
        self.total = Histogram(catalogue.REQUEST_TIME.buckets)
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0


class RequestMetrics(Collector):
    """Plain numbers on one event loop, turned into families when Prometheus asks."""

    def __init__(self) -> None:
        self._classes: dict[str, ClassMetrics] = {RequestClass.DEFAULT.value: ClassMetrics()}
        self._outcomes: Counter[tuple[str, str]] = Counter()
        self._keys: set[str] = set()
        self._key_requests: Counter[tuple[str, str]] = Counter()
        self._key_tokens: Counter[tuple[str, str]] = Counter()

    def of_class(self, name: str) -> ClassMetrics:
        """Of the class `name`; names that are none share one, for each makes a hundred series."""
        known = name if name in _CLASSES else OTHER
        found = self._classes.get(known)
        if found is None:
            found = self._classes[known] = ClassMetrics()
        return found

    def classes(self) -> Collection[ClassMetrics]:
        """Of each class that requests have had so far."""
        return self._classes.values()

    def count_outcome(self, class_name: str, outcome: str) -> None:
        self._outcomes[class_name if class_name in _CLASSES else OTHER, outcome] += 1

    def count_key(self, key: str, outcome: str, prompt_tokens: int, output_tokens: int) -> None:
        if key not in self._keys:
            if len(self._keys) >= MAX_KEYS:
                key = OTHER
            self._keys.add(key)
        self._key_requests[key, outcome] += 1
        self._key_tokens[key, "prompt"] += prompt_tokens
        self._key_tokens[key, "output"] += output_tokens

    def collect(self) -> Iterator[Family]:
        yield family(catalogue.REQUESTS, list(self._outcomes.items()))
        for metric, attribute in _HISTOGRAMS.items():
            yield histogram_family(
                metric, [((name,), getattr(each, attribute)) for name, each in self._classes.items()]
            )
        for metric, attribute in _TOKENS.items():
            yield family(metric, [((name,), getattr(each, attribute)) for name, each in self._classes.items()])
        yield family(catalogue.KEY_REQUESTS, list(self._key_requests.items()))
        yield family(catalogue.KEY_TOKENS, list(self._key_tokens.items()))


_HISTOGRAMS: Mapping[Metric, str] = {
    catalogue.QUEUE_TIME: "queue",
    catalogue.TTFT: "ttft",
    catalogue.INTER_TOKEN: "inter_token",
    catalogue.REQUEST_TIME: "total",
}
_TOKENS: Mapping[Metric, str] = {
    catalogue.PROMPT_TOKENS: "prompt_tokens",
    catalogue.CACHED_TOKENS: "cached_tokens",
    catalogue.OUTPUT_TOKENS: "output_tokens",
}
