"""An engine that is lost: started again where that is allowed, and told truthfully where not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fake_gateway import FakeGateway, fake_gateway

from proxima_engine import restarts

COMPLETIONS = "/v1/completions"


@pytest.fixture(autouse=True)
def short_pause(monkeypatch):
    monkeypatch.setattr(restarts, "FIRST_PAUSE_S", 0.01)


async def statuses(gateway: FakeGateway) -> tuple[int, ...]:
    return tuple([(await gateway.client.get(f"/health/{probe}")).status_code for probe in ("startup", "ready", "live")])


async def until_engine(gateway: FakeGateway, count: int) -> None:
    async with asyncio.timeout(5):
        while len(gateway.runtimes) < count:
            await asyncio.sleep(0.001)


async def ask(gateway: FakeGateway) -> Any:
    return await gateway.client.post(COMPLETIONS, json={"prompt": "Hi"})


async def test_the_engine_is_started_again_while_the_process_stays_alive():
    async with fake_gateway(lifecycle={"max_restarts": 1}) as gateway:
        await gateway.ready()
        gateway.runtime.fail("out of memory")
        assert await statuses(gateway) == (200, 503, 200)
        refused = await ask(gateway)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_unavailable")
        assert "restarted" in refused.json()["error"]["message"]
        await until_engine(gateway, 2)
        assert gateway.runtimes[0].stopped
        await gateway.ready()
        assert (await ask(gateway)).status_code == 200
        assert await statuses(gateway) == (200, 200, 200)
        assert "proxima_engine_restarts_total 1.0" in (await gateway.client.get("/metrics")).text


async def test_beyond_the_budget_the_process_tells_and_ends():
    async with fake_gateway(lifecycle={"max_restarts": 1, "exit_delay_s": 0.3}) as gateway:
        await gateway.ready()
        gateway.runtime.fail("out of memory")
        await until_engine(gateway, 2)
        # The second engine does not even start.
        gateway.runtime.fail("out of memory again")
        async with asyncio.timeout(5):
            while await statuses(gateway) != (200, 503, 503):
                pass
        assert "out of memory again" in (await ask(gateway)).json()["error"]["message"]
        await asyncio.wait_for(gateway.stopped, 5)
    assert "out of memory again" in str(gateway.gateway.error)
    assert len(gateway.runtimes) == 2


async def test_an_engine_that_never_started_is_not_tried_again():
    async with fake_gateway(lifecycle={"max_restarts": 5}) as gateway:
        gateway.runtime.fail("no such model")
        await asyncio.wait_for(gateway.stopped, 5)
    assert "no such model" in str(gateway.gateway.error)
    assert len(gateway.runtimes) == 1


async def test_a_hung_engine_is_ended_and_started_again(monkeypatch):
    monkeypatch.setattr("proxima_server.gateway.HANG_CHECK_S", 0.01)
    async with fake_gateway(lifecycle={"max_restarts": 1}) as gateway:
        await gateway.ready()
        gateway.runtime.hang = "no step"
        await until_engine(gateway, 2)
        assert gateway.runtimes[0].failure == "no step"
        assert (await gateway.client.get("/health/live")).status_code == 200
