"""KV of requests that yield comes back from host memory, on the real engine."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_process import GatewayProcess

from proxima_config.forced_length import FIELD, PROCESSOR

FORCED_SWAPS = Path(__file__).parents[1] / "support" / "forced_swaps.py"
pytestmark = [pytest.mark.engine, pytest.mark.slow]

# 39 usable blocks of 32 tokens. Float32, so that what shares a batch with a request cannot change what it samples.
FLAGS = [
    "--max-model-len",
    "1024",
    "--num-gpu-blocks-override",
    "40",
    "--block-size",
    "32",
    "--enforce-eager",
    "--swap",
]
FLAGS += ["--kv-cache-memory-bytes", "100000000", "--dtype", "float32", "--logits-processors", PROCESSOR]


def body(number: int, **sampling: Any) -> dict[str, Any]:
    return {"prompt": [10 + number] * (300 + number), "max_tokens": 200, "ignore_eos": True, **sampling}


# Proxima would let them wait. After many short answers to such prompts it expects others.
SHORT = {**body(20), "ignore_eos": False, "vllm_xargs": {FIELD: 4}}


def connect(gateway: GatewayProcess) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=gateway.url, trust_env=False, timeout=120)


async def metric(client: httpx.AsyncClient, series: str) -> float:
    found = re.search(rf"^{re.escape(series)} (\S+)$", (await client.get("/metrics")).text, re.MULTILINE)
    assert found
    return float(found[1])


async def test_texts_are_those_of_requests_that_ran_alone(tiny_model, tmp_path):
    """Each needs 16 of the 39 blocks in the end, so that some lose theirs, in the middle of an answer. What was asked
    before has been given up by the prefix cache. Asked together twice: how much of it is kept before anybody has asked
    for any of it depends on how fast the machine is."""
    bodies = [body(number, temperature=0) for number in range(4)]
    bodies += [body(number, temperature=1.0, seed=number) for number in range(4, 8)]
    with GatewayProcess([str(tiny_model), *FLAGS], tmp_path / "log") as gateway:
        gateway.wait_ready()
        async with connect(gateway) as client:

            async def text(request: dict[str, Any]) -> str:
                answer = (await client.post("/v1/completions", json=request)).json()
                assert "error" not in answer
                return answer["choices"][0]["text"]

            alone = [await text(request) for request in bodies]
            together = []
            for _ in range(2):
                await asyncio.gather(*(text(SHORT) for _ in range(80)))
                together.append(await asyncio.gather(*(text(request) for request in bodies)))
            await asyncio.sleep(0.5)
            assert await metric(client, 'proxima_swapped_blocks_total{direction="in",engine="0"}') > 0
            assert await metric(client, 'proxima_recompute_tokens_avoided_total{engine="0"}') > 100
            # Nine full blocks of each of the prompts, as far as they were not on the device.
            assert await metric(client, 'proxima_prefix_tokens_restored_total{engine="0"}') > 3 * 9 * 32
            assert await metric(client, 'proxima_swap_failures_total{cause="copy",engine="0"}') == 0
            assert await metric(client, 'proxima_host_kv_blocks_used{engine="0"}') == 0
    assert together == [alone, alone]


USED = 'proxima_host_kv_blocks_used{engine="0"}'


async def answer(client: httpx.AsyncClient, request: dict[str, Any]) -> dict[str, Any]:
    return (await client.post("/v1/completions", json=request)).json()


async def some_wait_on_the_host(client: httpx.AsyncClient) -> list[asyncio.Task[dict[str, Any]]]:
    """Six answers under way, of which some have given up their blocks."""
    await asyncio.gather(*(answer(client, SHORT) for _ in range(40)))
    accepted = "proxima_drain_remaining_requests"
    async with asyncio.timeout(60):
        # Short ones yield, too, and what is told of them is still on its way.
        while await metric(client, USED):
            await asyncio.sleep(0.02)
        tasks = [asyncio.create_task(answer(client, body(number, temperature=0))) for number in range(6)]
        while await metric(client, accepted) + sum(task.done() for task in tasks) < len(tasks):
            await asyncio.sleep(0.02)
        while not await metric(client, USED):
            await asyncio.sleep(0.02)
    return tasks


async def test_what_a_client_that_goes_away_has_on_the_host_is_gone_and_the_others_get_their_text(tiny_model, tmp_path):
    with GatewayProcess([str(tiny_model), *FLAGS], tmp_path / "log") as gateway:
        gateway.wait_ready()
        async with connect(gateway) as client:
            alone = [(await answer(client, body(number, temperature=0)))["choices"][0]["text"] for number in range(6)]
            for half in (range(3), range(3, 6)):
                tasks = await some_wait_on_the_host(client)
                gone = [number for number in half if tasks[number].cancel()]
                assert gone
                answers = await asyncio.gather(*tasks, return_exceptions=True)
                stayed = {number: each for number, each in enumerate(answers) if number not in gone}
                assert {number: each["choices"][0]["text"] for number, each in stayed.items()} == {
                    number: alone[number] for number in stayed
                }
                async with asyncio.timeout(10):
                    while await metric(client, USED) or await metric(client, 'proxima_kv_blocks_used{engine="0"}'):
                        await asyncio.sleep(0.1)
            assert await metric(client, 'proxima_swap_failures_total{cause="copy",engine="0"}') == 0


async def test_kv_on_the_host_is_gone_with_a_killed_engine_and_is_loaded_while_the_gateway_drains(tiny_model, tmp_path):
    with GatewayProcess([str(tiny_model), *FLAGS, "--max-restarts", "1"], tmp_path / "log") as gateway:
        gateway.wait_ready()
        async with connect(gateway) as client:
            alone = [(await answer(client, body(number, temperature=0)))["choices"][0]["text"] for number in range(6)]
            tasks = await some_wait_on_the_host(client)
            for process in gateway.engine_processes():
                process.kill()
            failed = await asyncio.gather(*tasks)
            assert any("error" in each for each in failed)
            async with asyncio.timeout(120):
                while (await client.get("/health/ready")).status_code != 200:
                    await asyncio.sleep(0.2)
            assert (await answer(client, body(0, temperature=0)))["choices"][0]["text"] == alone[0]
            await asyncio.sleep(0.5)
            assert await metric(client, USED) == 0
            tasks = await some_wait_on_the_host(client)
            gateway.process.send_signal(signal.SIGTERM)
            drained = await asyncio.gather(*tasks)
            assert not [each for each in drained if "error" in each]
            assert [each["choices"][0]["text"] for each in drained] == alone
        assert await asyncio.to_thread(gateway.wait_exit) == 0


def test_a_request_that_is_made_to_yield_at_random_steps_gives_the_text_that_it_gives_alone(tiny_model):
    """Greedy and seeded, in the middle of its prompt as in the middle of its answer."""
    done = subprocess.run(
        [sys.executable, str(FORCED_SWAPS), str(tiny_model)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    counters = found["counters"]
    # Six answers of 80 tokens after some 290, and about one yield for every four steps.
    assert counters["tokens_kept"] > 6 * 80 / 5 * 250
    assert counters["blocks_in"] > counters["tokens_kept"] / 32
    assert (counters["failed"], counters["no_room"], found["policy_failures"]) == (0, 0, 0)
    assert found["host_blocks_used"] == 0
    assert found["forced"]["greedy"] == found["alone"]["greedy"]
    assert found["forced"]["seeded"] == found["alone"]["seeded"]
