"""HTTP answers from the start, and says how the engine is."""

from __future__ import annotations

import asyncio

import httpx
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
        # Loading was over once, and stays so.
        assert await statuses(gateway) == dict(zip(PROBES, (503, 200, 503, 503), strict=True))
        body = (await gateway.client.get("/health/live")).json()
    assert (body["status"], body["phase"], body["failure"]) == ("unavailable", "failed", "out of memory")


async def test_a_hung_engine_fails_liveness_until_it_goes_on():
    async with fake_gateway() as gateway:
        await gateway.ready()
        gateway.runtime.hang = "no step for 120 s"
        gateway.runtime.heartbeat.stalled_s = 121.0
        assert await statuses(gateway) == dict(zip(PROBES, (503, 200, 503, 503), strict=True))
        assert (await gateway.client.get("/health/live")).json()["failure"] == "no step for 120 s"
        assert "proxima_engine_stalled_seconds 121.0" in (await gateway.client.get("/metrics")).text
        gateway.runtime.hang = None
        assert await statuses(gateway) == dict.fromkeys(PROBES, 200)


async def test_load_alone_fails_no_probe_and_probes_do_not_queue_behind_it():
    async with fake_gateway() as gateway:
        await gateway.ready()
        gateway.serving.hold.clear()
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(base_url=gateway.client.base_url, trust_env=False, limits=limits) as many:
            asking = [asyncio.create_task(many.post("/v1/completions", json={"prompt": "Hi"})) for _ in range(100)]
            async with asyncio.timeout(5):
                await gateway.serving.started.wait()
                assert await statuses(gateway) == dict.fromkeys(PROBES, 200)
            gateway.serving.hold.set()
            await asyncio.gather(*asking)


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
