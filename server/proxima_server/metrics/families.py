"""From the catalogue to prometheus_client's families, for values read at scrape time."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from proxima_config.metrics_catalogue import Kind, Metric

Family = CounterMetricFamily | GaugeMetricFamily


def family(metric: Metric, samples: Sequence[tuple[Sequence[str], float]]) -> Family:
    """The family of `metric` with one sample per (label values, value)."""
    make = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    result = make(metric.name, metric.help, labels=metric.labels)
    for labels, value in samples:
        result.add_metric(labels, value)
    return result
