"""`/metrics` has every series of the catalogue from the first scrape on."""

from __future__ import annotations

from fake_gateway import fake_gateway, snapshot
from prometheus_client.parser import text_string_to_metric_families

from proxima_config.metrics_catalogue import METRICS, Kind
from proxima_engine.policy.plan import Reason

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
    families = {
        family.name: family for family in text_string_to_metric_families(text) if family.name.startswith("proxima_")
    }
    assert {metric.name.removesuffix("_total") for metric in METRICS} == set(families)
    for metric in METRICS:
        family = families[metric.name.removesuffix("_total")]
        assert family.type == metric.kind.value
        assert family.documentation == metric.help
        assert family.samples, metric.name
        for sample in family.samples:
            assert (sample.name, set(sample.labels)) == (metric.name, set(metric.labels))


def test_counters_and_only_counters_end_in_total():
    assert all(metric.name.endswith("_total") == (metric.kind is Kind.COUNTER) for metric in METRICS)


async def test_no_series_appears_only_later():
    async with fake_gateway() as gateway:
        before = samples((await gateway.client.get("/metrics")).text)
        await gateway.ready()
        gateway.runtime.snapshot_receiver.latest[0] = snapshot()
        for path in ("/v1/models", "/v1/models/none", "/version"):
            await gateway.client.get(path)
        await gateway.client.post("/v1/completions", json={"stream": True})
        after = samples((await gateway.client.get("/metrics")).text)
    assert set(before) == set(after)


async def test_the_snapshot_is_shown():
    async with fake_gateway() as gateway:
        gateway.runtime.snapshot_receiver.latest[0] = snapshot()
        found = samples((await gateway.client.get("/metrics")).text)
    assert value(found, "proxima_scheduler_running", engine="0") == 3
    assert value(found, "proxima_kv_blocks", engine="0") == 191
    assert value(found, "proxima_kv_blocks_used", engine="0") == 100
    assert value(found, "proxima_kv_blocks_forecast_peak", engine="0") == 120
    assert value(found, "proxima_estimated_start_seconds", **{"engine": "0", "class": "default"}) == 4
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
