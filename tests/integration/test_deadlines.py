"""Deadlines on the real engine: what is too late is aborted, and its KV blocks are free."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time

import httpx
import pytest

pytestmark = pytest.mark.engine

ENDLESS = {"prompt": "Once upon a time", "max_tokens": 3000, "ignore_eos": True}


@pytest.fixture
async def client(gateway_url: str):
    limits = httpx.Limits(max_connections=200)
    async with httpx.AsyncClient(base_url=gateway_url, trust_env=False, timeout=120, limits=limits) as client:
        yield client


async def values(client: httpx.AsyncClient, name: str, **labels: str) -> list[float]:
    shown = ",".join(f'.*{label}="{value}"' for label, value in labels.items())
    pattern = re.compile(rf"^{name}(?:{{{shown}.*}})? (\S+)$", re.MULTILINE)
    return [float(value) for value in pattern.findall((await client.get("/metrics")).text)]


async def until_empty(client: httpx.AsyncClient) -> None:
    """Until neither vLLM nor the scheduler has a request, and no block is held."""
    async with asyncio.timeout(30):
        while True:
            text = (await client.get("/metrics")).text
            names = "vllm:num_requests_running|proxima_scheduler_running|proxima_kv_blocks_used"
            if {float(value) for value in re.findall(rf"^(?:{names})\{{.*\}} (\S+)$", text, re.MULTILINE)} == {0.0}:
                return


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_an_answer_that_takes_too_long_is_aborted_and_frees_its_blocks(client, stream):
    before = await values(client, "proxima_deadlines_expired_total", deadline="total")
    response = await client.post("/v1/completions", json={**ENDLESS, "stream": stream, "timeout": 2})
    if stream:
        events = response.text.strip().split("\n\n")
        tokens = [event for event in events if '"text"' in event]
        assert tokens, "what was made in time has been sent"
        assert sum('"error"' in event for event in events) == 1
        assert "[DONE]" not in response.text
        error = json.loads(events[-1].removeprefix("data: "))["error"]
    else:
        assert response.status_code == 504
        error = response.json()["error"]
    assert error["code"] == "deadline_exceeded"
    await until_empty(client)
    after = await values(client, "proxima_deadlines_expired_total", deadline="total")
    assert after == [before[0] + 1]


async def test_an_answer_in_time_is_whole(client):
    body = {"prompt": "Once", "max_tokens": 4, "ignore_eos": True, "timeout": 60}
    answer = (await client.post("/v1/completions", json=body, headers={"x-request-timeout-ms": "59000"})).json()
    assert answer["usage"]["completion_tokens"] == 4


@pytest.mark.slow
async def test_overload_does_not_make_all_late(client):
    """Several times what the engine can do in the time that each gives it. Whoever is answered is in time; the others
    hear that they were late, or at once that they would be, and the engine is free afterwards."""
    body = {"prompt": [11] * 64, "max_tokens": 48, "ignore_eos": True}
    began_s = time.monotonic()
    await asyncio.gather(*(client.post("/v1/completions", json=body) for _ in range(8)))
    # As fast as the engine is here and now, whatever else runs on the machine.
    within_s = 4 * max(1.0, time.monotonic() - began_s)

    async def ask(number: int) -> httpx.Response:
        await asyncio.sleep(number * within_s / 48)
        return await client.post("/v1/completions", json={**body, "timeout": math.ceil(within_s)})

    responses = await asyncio.gather(*(ask(number) for number in range(160)))
    statuses = [response.status_code for response in responses]
    assert set(statuses) <= {200, 429, 504}
    assert statuses.count(200) >= 10, statuses
    for response in responses:
        if response.status_code == 429:
            assert response.json()["error"]["code"] == "queue_full"
            assert 0 < int(response.headers["retry-after-ms"]) <= 120_000
    await until_empty(client)
