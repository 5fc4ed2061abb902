"""`/metrics` has every series of the catalogue from the first scrape on."""

from __future__ import annotations

import re

from fake_gateway import CACHED_TOKENS, PROMPT_TOKENS, fake_gateway, snapshot
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from proxima_config.api_keys import digest
from proxima_config.metrics.metric import Kind
from proxima_config.metrics_catalogue import METRICS
from proxima_engine.policy.plan import Reason
from proxima_server.metrics.histogram import Histogram
from proxima_server.metrics.request_metrics import MAX_KEYS, RequestMetrics

OURS = ("proxima_", "DCGM_")
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(text: str) -> Samples:
    families = text_string_to_metric_families(text)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
        if sample.name.startswith("proxima_")
    }


def value(found: Samples, name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


async def test_the_first_scrape_shows_exactly_the_catalogue():
    async with fake_gateway() as gateway:
        response = await gateway.client.get("/metrics")
        text = response.text
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(text) if family.name.startswith(OURS)}
    assert {metric.name.removesuffix("_total") for metric in METRICS} == set(families)
    for metric in METRICS:
        family = families[metric.name.removesuffix("_total")]
        assert family.type == metric.kind.value
        assert family.documentation == metric.help
        assert family.samples or metric.on_demand, metric.name
        for sample in family.samples:
            assert sample.name.removesuffix(suffix_of(sample)) == metric.name
            assert set(sample.labels) - {"le"} == set(metric.labels)
            assert ("le" in sample.labels) is sample.name.endswith("_bucket")


def suffix_of(sample: Sample) -> str:
    """What Prometheus adds to the name of a histogram."""
    found = re.search(r"_(bucket|sum|count)$", sample.name)
    return found[0] if found and "build" not in sample.name else ""


def test_counters_and_only_counters_end_in_total():
    assert all(metric.name.endswith("_total") == (metric.kind is Kind.COUNTER) for metric in METRICS)


def test_histograms_begin_at_a_millisecond():
    bounds = [metric.buckets for metric in METRICS if metric.kind is Kind.HISTOGRAM]
    assert bounds
    for each in bounds:
        assert each[0] == 0.001
        assert list(each) == sorted(set(each))


async def test_no_series_appears_only_later_but_those_said_to():
    async with fake_gateway() as gateway:
        before = samples((await gateway.client.get("/metrics")).text)
        await gateway.ready()
        gateway.runtime.snapshot_receiver.latest[0] = snapshot()
        for path in ("/v1/models", "/v1/models/none", "/version"):
            await gateway.client.get(path)
        await gateway.client.post("/v1/completions", json={"stream": True})
        after = samples((await gateway.client.get("/metrics")).text)
    later = {metric.name for metric in METRICS if metric.on_demand}
    assert {name for name, _ in set(after) - set(before)} <= later
    assert set(before) <= set(after)


async def test_the_snapshot_is_shown():
    async with fake_gateway() as gateway:
        gateway.runtime.snapshot_receiver.latest[0] = snapshot()
        found = samples((await gateway.client.get("/metrics")).text)
    assert value(found, "proxima_scheduler_running", engine="0") == 3
    assert value(found, "proxima_kv_blocks", engine="0") == 191
    assert value(found, "proxima_kv_blocks_used", engine="0") == 100
    assert value(found, "proxima_kv_blocks_forecast_peak", engine="0") == 120
    assert value(found, "proxima_estimated_start_seconds", **{"engine": "0", "class": "default"}) == 4
    assert value(found, "proxima_scheduler_waiting_tokens", **{"engine": "0", "class": "default"}) == 700
    assert value(found, "proxima_scheduler_oldest_wait_seconds", **{"engine": "0", "class": "default"}) == 1.25
    assert value(found, "proxima_scheduler_oldest_wait_seconds", **{"engine": "0", "class": "flex"}) == 0
    assert value(found, "proxima_yields_total", engine="0", mode="recompute") == 1
    waiting = {reason: value(found, "proxima_scheduler_waiting", **label(reason)) for reason in Reason}
    assert waiting == {reason: 2 if reason is Reason.BLOCKS else 0 for reason in Reason}


def label(reason: Reason) -> dict[str, str]:
    return {"engine": "0", "reason": reason.value, "class": "default"}


async def test_every_rank_is_shown_from_the_start():
    async with fake_gateway(engine={"data_parallel_size": 2}) as gateway:
        found = samples((await gateway.client.get("/metrics")).text)
    assert value(found, "proxima_scheduler_running", engine="1") == 0


async def test_requests_are_counted_by_route_not_by_path():
    async with fake_gateway() as gateway:
        await gateway.ready()
        for model in ("a", "b", "fake"):
            await gateway.client.get(f"/v1/models/{model}")
        await gateway.client.get("/no/such/path")
        await gateway.client.request("MKCOL", "/v1/models")
        found = samples((await gateway.client.get("/metrics")).text)
    name, route = "proxima_http_requests_total", "/v1/models/{model:path}"
    assert value(found, name, route=route, method="GET", status="404") == 2
    assert value(found, name, route=route, method="GET", status="200") == 1
    assert value(found, name, route="unmatched", method="GET", status="404") == 1
    assert value(found, name, route="/v1/models", method="other", status="405") == 1
    assert value(found, "proxima_http_requests_in_flight") == 1, "the scrape itself"


async def test_the_phase_is_shown():
    async with fake_gateway() as gateway:
        loading = samples((await gateway.client.get("/metrics")).text)
        await gateway.ready()
        ready = samples((await gateway.client.get("/metrics")).text)
    assert value(loading, "proxima_engine_phase", phase="starting") == 1
    assert value(loading, "proxima_engine_up") == 0
    assert value(ready, "proxima_engine_phase", phase="ready") == 1
    assert value(ready, "proxima_engine_up") == 1


async def test_a_stream_shows_in_the_histograms_and_the_tokens_of_its_class():
    async with fake_gateway() as gateway:
        await gateway.ready()
        gateway.serving.events[:1] *= 3
        await gateway.client.post("/v1/completions", json={"stream": True, "service_tier": "flex"})
        await gateway.client.post("/v1/completions", json={})
        found = samples((await gateway.client.get("/metrics")).text)
    for name, count in (
        ("proxima_time_to_first_token_seconds", 1),
        ("proxima_inter_token_seconds", 2),
        ("proxima_request_seconds", 1),
        ("proxima_queue_seconds", 1),
    ):
        assert value(found, f"{name}_count", **{"class": "flex"}) == count, name
        assert value(found, f"{name}_bucket", **{"class": "flex", "le": "+Inf"}) == count, name
    assert value(found, "proxima_output_tokens_total", **{"class": "flex"}) == 3
    assert value(found, "proxima_prompt_tokens_total", **{"class": "flex"}) == PROMPT_TOKENS
    assert value(found, "proxima_cached_prompt_tokens_total", **{"class": "flex"}) == CACHED_TOKENS
    assert value(found, "proxima_requests_total", **{"class": "flex", "outcome": "ok"}) == 1
    assert value(found, "proxima_time_to_first_token_seconds_count", **{"class": "default"}) == 1
    assert value(found, "proxima_inter_token_seconds_count", **{"class": "default"}) == 0, "not streamed"


async def test_a_histogram_is_cumulative():
    histogram = Histogram((0.001, 0.01, 0.1))
    for seconds in (0.0005, 0.001, 0.05, 7.0):
        histogram.observe(seconds)
    assert histogram.buckets() == [("0.001", 2), ("0.01", 2), ("0.1", 3), ("+Inf", 4)]
    assert histogram.sum == 7.0515


async def test_invented_classes_share_one_series(tmp_path):
    """Only a key that is trusted with hints can invent them."""
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"keys: [{{name: a, trust_hints: true, sha256: {digest('sk-test-0123456789')}}}]")
    async with fake_gateway(auth={"api_keys_file": str(keys)}) as gateway:
        await gateway.ready()
        for name in ("mine", "yours"):
            body = {"vllm_xargs": {"proxima_class": name}}
            await gateway.client.post("/v1/completions", json=body, headers={"x-api-key": "sk-test-0123456789"})
        found = samples((await gateway.client.get("/metrics")).text)
    assert value(found, "proxima_requests_total", **{"class": "other", "outcome": "ok"}) == 2
    assert value(found, "proxima_key_requests_total", key="a", outcome="ok") == 2


def test_keys_have_series_of_their_own_up_to_a_bound():
    metrics = RequestMetrics()
    for number in range(MAX_KEYS + 50):
        metrics.count_key(f"key-{number}", "ok", 3, 4)
    metrics.count_key("key-0", "ok", 3, 4)
    families = {each.name: each for each in metrics.collect()}
    requests = {sample.labels["key"]: sample.value for sample in families["proxima_key_requests"].samples}
    tokens = {tuple(sample.labels.values()): sample.value for sample in families["proxima_key_tokens"].samples}
    assert len(requests) == MAX_KEYS + 1
    assert requests["other"] == 50
    assert requests["key-0"] == 2
    assert tokens["key-0", "output"] == 8
    assert tokens["other", "prompt"] == 150
