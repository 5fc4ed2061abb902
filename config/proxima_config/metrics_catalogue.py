"""Every metric of our own that `/metrics` shows; docs, dashboards and alerts are generated from this table.

vLLM's own metrics (`vllm:*`) are passed on verbatim and are not listed here. Counters are named with the `_total` that
Prometheus shows.
"""

from __future__ import annotations

from proxima_config.metrics import door, gpu, process, requests, scheduler
from proxima_config.metrics.metric import Kind, Metric

_PAGE_HEAD = """\
# Metrics

`GET /metrics` answers in Prometheus' text format. The series of the table are present from the first scrape on, before
the engine has loaded, except those marked *later*: they appear with the first event they count. vLLM's own metrics
(`vllm:*`, under vLLM's own names) join when the engine has loaded. The label `engine` is the data-parallel rank, as
with vLLM's metrics; `class` is the request's class, of which `default` is always shown. Metrics of GPUs have the names,
units and labels of NVIDIA's dcgm-exporter; they are read through NVML and absent where there is no GPU.

This page is generated from `config/proxima_config/metrics/` by `make docs`.

| name | type | labels | unit | meaning |
|---|---|---|---|---|
"""
_PAGE_BUCKETS = """
A histogram `name` shows `name_bucket` with the label `le`, `name_sum` and `name_count`. Upper bounds of the buckets:

| name | seconds |
|---|---|
"""

METRICS: tuple[Metric, ...] = tuple(
    each
    for topic in (process, requests, door, scheduler, gpu)
    for each in vars(topic).values()
    if isinstance(each, Metric)
)
"""All of them, in the order of these modules."""


def metrics_page() -> str:
    """docs/metrics.md."""
    return _PAGE_HEAD + "".join(map(_row, METRICS)) + _PAGE_BUCKETS + "".join(map(_buckets, METRICS))


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels) or "none"
    later = " *(later)*" if metric.on_demand else ""
    return f"| `{metric.name}`{later} | {metric.kind} | {labels} | {metric.unit} | {metric.help} |\n"


def _buckets(metric: Metric) -> str:
    if metric.kind is not Kind.HISTOGRAM:
        return ""
    return f"| `{metric.name}` | {', '.join(map(str, metric.buckets))} |\n"
