"""HTTP answers from the start, and says how the engine is."""

from __future__ import annotations

import pytest
from fake_gateway import FakeGateway, fake_gateway, snapshot

PROBES = ("/health/live", "/health/startup", "/health/ready", "/health")


async def statuses(gateway: FakeGateway) -> dict[str, int]:
    return {path: (await gateway.client.get(path)).status_code for path in PROBES}


async def test_loading_is_alive_but_not_ready():
    async with fake_gateway() as gateway:
        assert await statuses(gateway) == dict(zip(PROBES, (200, 503, 503, 503), strict=True))
        assert (await gateway.client.get("/health")).json()["phase"] == "starting"


async def test_ready_once_loaded():
    async with fake_gateway() as gateway:
        await gateway.ready()
        assert await statuses(gateway) == dict.fromkeys(PROBES, 200)


async def test_a_dead_engine_fails_liveness_and_names_the_cause():
    async with fake_gateway() as gateway:
        await gateway.ready()
        gateway.runtime.fail("out of memory")
        assert await statuses(gateway) == dict.fromkeys(PROBES, 503)
        body = (await gateway.client.get("/health/live")).json()
    assert (body["status"], body["phase"], body["failure"]) == ("unavailable", "failed", "out of memory")


async def test_stopping_the_server_stops_the_engine():
    async with fake_gateway() as gateway:
        pass
    assert gateway.runtime.stopped


async def test_a_failed_policy_is_visible_in_health_and_metrics():
    async with fake_gateway() as gateway:
        await gateway.ready()
        gateway.runtime.snapshot_receiver.latest[0] = snapshot(policy_state="degraded", policy_failures_total=2)
        policy = (await gateway.client.get("/health")).json()["scheduler"]["policy"]
        metrics = (await gateway.client.get("/metrics")).text
    assert policy == {"state": "degraded", "failures": 2, "last_error": "ValueError: no plan"}
    assert 'proxima_policy_state{engine="0",state="degraded"} 1.0' in metrics
    assert 'proxima_policy_failures_total{engine="0"} 2.0' in metrics


@pytest.mark.parametrize(("kind", "state"), [("proxima", "ok"), ("native", "native"), ("gang", "ok")])
async def test_health_names_the_scheduler(kind, state):
    async with fake_gateway(scheduler={"kind": kind}) as gateway:
        scheduler = (await gateway.client.get("/health")).json()["scheduler"]
    assert scheduler == {"kind": kind, "policy": {"state": state}}
