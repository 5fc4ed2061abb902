"""Many at once, seeds, and clients that leave."""

from __future__ import annotations

import asyncio
import re

import httpx
import pytest

pytestmark = pytest.mark.engine

STREAMS = 64


@pytest.fixture
async def client(gateway_url: str):
    limits = httpx.Limits(max_connections=STREAMS + 4)
    async with httpx.AsyncClient(base_url=gateway_url, trust_env=False, timeout=300, limits=limits) as client:
        yield client


async def test_many_seeded_streams_on_a_small_pool_all_finish(client):
    """Together they need more than the 191 blocks there are: some wait, some are preempted, none fails."""

    async def stream(number: int) -> list[str]:
        body = {
            "prompt": f"Story number {number}. " + f"{number} sheep went to town. " * 12,
            "max_tokens": 32,
            "ignore_eos": True,
            "seed": number,
            "temperature": 0.8,
            "stream": True,
        }
        async with client.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200
            return [line async for line in response.aiter_lines() if line.startswith("data:")]

    streams = await asyncio.gather(*(stream(number) for number in range(STREAMS)))
    for lines in streams:
        assert lines[-1] == "data: [DONE]"
        assert not any('"error"' in line for line in lines)
        assert sum('"finish_reason":"length"' in line for line in lines) == 1
    assert (await client.get("/health")).status_code == 200


@pytest.mark.parametrize(
    "repeats", [pytest.param(1, id="prefill_in_one_step"), pytest.param(150, id="prefill_in_several_steps")]
)
async def test_a_seed_gives_the_same_text_again(client, repeats):
    async def text(attempt: int) -> str:
        body = {
            "prompt": "The weather today is fine, they say. " * repeats,
            "max_tokens": 16,
            "temperature": 1.0,
            "seed": 1234,
            # Keeps the second from finding the first one's prompt computed, which would leave nothing to split.
            "cache_salt": f"{repeats}-{attempt}",
        }
        answer = (await client.post("/v1/completions", json=body)).json()
        assert "error" not in answer
        return answer["choices"][0]["text"]

    first, second = await text(1), await text(2)
    assert first == second


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_client_that_leaves_frees_the_engine(client, stream):
    body = {"prompt": "Once upon a time", "max_tokens": 3000, "ignore_eos": True, "stream": stream}
    asking = asyncio.create_task(client.post("/v1/completions", json=body))
    await until_running(client, 1)
    asking.cancel()
    await until_running(client, 0)


async def until_running(client: httpx.AsyncClient, wanted: int) -> None:
    """Until both vLLM's frontend and the scheduler in the engine process say so."""
    running = re.compile(r"^(?:vllm:num_requests_running|proxima_scheduler_running)\{.*\} (\S+)$", re.MULTILINE)
    async with asyncio.timeout(30):
        while True:
            text = (await client.get("/metrics")).text
            found = running.findall(text)
            if [float(value) for value in found] == [wanted, wanted]:
                return
