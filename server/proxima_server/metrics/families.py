"""From the catalogue to prometheus_client's families, for values read at scrape time."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from proxima_config.metrics.metric import Kind, Metric
from proxima_server.metrics.histogram import Histogram

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


def family(metric: Metric, samples: Sequence[tuple[Sequence[str], float]]) -> Family:
    """The family of `metric` with one sample per (label values, value)."""
    make = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    result = make(metric.name, metric.help, labels=metric.labels)
    for labels, value in samples:
        result.add_metric(labels, value)
    return result


def histogram_family(metric: Metric, histograms: Sequence[tuple[Sequence[str], Histogram]]) -> Family:
    """The family of `metric` with one histogram per label values."""
    result = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, histogram in histograms:
        result.add_metric(labels, histogram.buckets(), histogram.sum)
    return result
