"""All-or-nothing allocation on the real engine: slow by design, and still right."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx
import pytest
from gateway_process import GatewayProcess

pytestmark = [pytest.mark.engine, pytest.mark.slow]

# 39 usable blocks of 32 tokens. Float32, so that what shares a batch with a request cannot change what it samples.
GANG = ["--scheduler", "gang", "--max-model-len", "1024", "--num-gpu-blocks-override", "40", "--block-size", "32"]
GANG += ["--enforce-eager", "--kv-cache-memory-bytes", "100000000", "--dtype", "float32"]


async def test_streams_that_do_not_fit_together_all_end_with_the_text_they_get_alone(tiny_model, tmp_path):
    # Four start beside each other, with 7 blocks each; in the end each of them needs 16.
    bodies = [{"prompt": [20 + number] * 200, "max_tokens": 300, "temperature": 0} for number in range(4)]
    with GatewayProcess([str(tiny_model), *GANG], tmp_path / "log") as gateway:
        gateway.wait_ready()
        async with httpx.AsyncClient(base_url=gateway.url, trust_env=False, timeout=300) as client:
            alone = [await answer(client, body) for body in bodies]
            assert await total(client, "vllm:num_preemptions_total") == 0
            together = await asyncio.gather(*(answer(client, body) for body in bodies))
            assert await total(client, "vllm:num_preemptions_total") > 0
            # By its own plan: vLLM's scheduler yields nothing. The engine reports it a moment later.
            async with asyncio.timeout(10):
                while not await total(client, "proxima_yields_total"):
                    await asyncio.sleep(0.1)
    assert together == alone
    assert len(set(alone)) == len(bodies)


async def answer(client: httpx.AsyncClient, body: dict[str, Any]) -> str:
    """Text of a stream, which must run to its end."""
    text, reasons = "", []
    async with client.stream("POST", "/v1/completions", json={**body, "ignore_eos": True, "stream": True}) as response:
        assert response.status_code == 200
        lines = [line async for line in response.aiter_lines() if line.startswith("data: ")]
    assert lines.pop() == "data: [DONE]"
    for line in lines:
        choice = json.loads(line.removeprefix("data: "))["choices"][0]
        text += choice["text"]
        reasons.append(choice["finish_reason"])
    assert reasons[-1] == "length"
    return text


async def total(client: httpx.AsyncClient, metric: str) -> float:
    metrics = (await client.get("/metrics")).text
    return sum(float(value) for value in re.findall(rf"^{metric}\{{.*\}} (\S+)$", metrics, re.MULTILINE))
