"""What else vLLM can do, under Proxima: each combination starts, and its answers are those of requests run alone."""

from __future__ import annotations

import asyncio
import gc
import re
import warnings
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from gateway_process import GatewayProcess
from tiny_adapter import write_tiny_adapter

from proxima_config.hardware import detect
from proxima_config.layering import load_settings
from proxima_engine.runtime import EnginePhase, EngineRuntime

pytestmark = [pytest.mark.engine, pytest.mark.slow]

# 31 usable blocks of 32: the load below asks for four times as many. Float32, so that a batch changes no answer.
POOL = ["--max-model-len", "512", "--num-gpu-blocks-override", "32", "--block-size", "32", "--enforce-eager"]
POOL += ["--kv-cache-memory-bytes", "100000000", "--dtype", "float32"]
REQUESTS = 20
REPEATING = [20, 21, 22, 23, 24] * 20
JSON = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "properties": {}}}}
BY_PRIORITY = "--scheduling-policy=priority"
COMBINATIONS = {
    "whole_prompts_without_prefix_cache": [
        "--no-enable-chunked-prefill",
        "--no-enable-prefix-caching",
        "--max-num-batched-tokens=1024",
    ],
    "chunked_prompts_with_prefix_cache": ["--max-num-batched-tokens=64", "--enable-prefix-caching"],
    "ngram_speculation": [
        '--speculative-config={"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}'
    ],
    # Not for float32. In bfloat16 who shares a batch changes the last bits, so only lengths are compared.
    "int8_weights": ["--quantization=int8_per_channel_weight_only", "--dtype=bfloat16"],
    # vLLM switches asynchronous scheduling off on CPUs.
    "priorities_and_async_scheduling": [BY_PRIORITY, "--async-scheduling"],
}


def body(number: int, **fields: Any) -> dict[str, Any]:
    prompt = [*REPEATING, 30 + number % 4]
    return {"prompt": prompt, "max_tokens": 40 + number, "temperature": 0, "ignore_eos": True, **fields}


def connect(gateway: GatewayProcess) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(base_url=gateway.url, trust_env=False, timeout=300, limits=limits)


async def ask(client: httpx.AsyncClient, request: dict[str, Any]) -> tuple[str, int]:
    path = "/v1/chat/completions" if "messages" in request else "/v1/completions"
    answer = (await client.post(path, json=request)).json()
    assert "error" not in answer, answer
    choice = answer["choices"][0]
    text = choice["message"]["content"] if "messages" in request else choice["text"]
    return text, answer["usage"]["completion_tokens"]


async def check(gateway: GatewayProcess, bodies: list[dict[str, Any]], *, exact: bool = True) -> list[str]:
    """All at once come to what each says alone (its length, if not `exact`), and leave nothing behind; returns the
    texts."""
    async with connect(gateway) as client:
        alone = [await ask(client, request) for request in bodies]
        together = await asyncio.gather(*(ask(client, request) for request in bodies))
        if exact:
            assert together == alone
        else:
            assert [tokens for _, tokens in together[:-1]] == [request["max_tokens"] for request in bodies[:-1]]
        health = (await client.get("/health")).json()
        assert health["scheduler"]["kind"] == "proxima"
        assert health["scheduler"]["policy"]["state"] == "ok"
        assert health["scheduler"]["policy"]["failures"] == 0
        for _ in range(50):
            metrics = (await client.get("/metrics")).text
            used = re.search(r"^proxima_kv_blocks_used\{.*\} (\S+)$", metrics, re.MULTILINE)
            assert used
            if float(used[1]) == 0:
                break
            await asyncio.sleep(0.1)
        else:
            pytest.fail(f"{used[1]} blocks are still held")
        return [text for text, _ in together]


@pytest.fixture(scope="module")
def texts_of_native(tiny_model, tmp_path_factory) -> list[str]:
    """What vLLM's own scheduler answers to each request alone."""
    log = tmp_path_factory.mktemp("native") / "log"
    with GatewayProcess([str(tiny_model), *POOL, "--scheduler=native"], log) as gateway:
        gateway.wait_ready()

        async def ask_all() -> list[str]:
            async with connect(gateway) as client:
                return [(await ask(client, body(number)))[0] for number in range(REQUESTS)]

        return asyncio.run(ask_all())


@pytest.fixture
def gateway(request, tiny_model, tmp_path) -> Iterator[GatewayProcess]:
    with GatewayProcess([str(tiny_model), *POOL, *request.param], tmp_path / "log") as gateway:
        gateway.wait_ready()
        yield gateway


@pytest.mark.parametrize(
    "gateway", [pytest.param(flags, id=name) for name, flags in COMBINATIONS.items()], indirect=True
)
async def test_answers_under_pressure_are_those_of_requests_alone(texts_of_native, gateway):
    bodies = [body(number) for number in range(REQUESTS)]
    if BY_PRIORITY in gateway.process.args:
        bodies = [{**each, "priority": number % 3} for number, each in enumerate(bodies)]
    chat = {"messages": [{"role": "user", "content": "json"}], "max_tokens": 30, "temperature": 0}
    exact = "--dtype=bfloat16" not in gateway.process.args
    texts = await check(gateway, [*bodies, {**chat, "response_format": JSON}], exact=exact)
    if exact:
        assert texts[:-1] == texts_of_native


ADAPTERS = ["--enable-lora", "--max-loras=1", "--max-lora-rank=8"]


async def test_more_adapters_than_a_batch_may_have_take_turns(tiny_model, tmp_path):
    folders = [write_tiny_adapter(tmp_path / name, seed) for seed, name in enumerate(("one", "two"))]
    modules = ["--lora-modules", *(f"{folder.name}={folder}" for folder in folders)]
    with GatewayProcess([str(tiny_model), *POOL, *ADAPTERS, *modules], tmp_path / "log") as gateway:
        gateway.wait_ready()
        names = ["one", "two"]
        texts = await check(gateway, [body(0, model=names[number % 2], max_tokens=60) for number in range(12)])
        assert len(set(texts)) == len(names), "without a difference this shows nothing"


def test_fp8_kv_serves_where_the_processor_can_and_says_so_where_it_cannot(tiny_model, tmp_path):
    with GatewayProcess([str(tiny_model), *POOL, "--kv-cache-dtype=fp8"], tmp_path / "log") as gateway:
        if "avx512f" in detect().cpu_flags:
            gateway.wait_ready()
            with gateway.client() as client:
                assert client.post("/v1/completions", json=body(0)).status_code == 200
        else:
            assert gateway.wait_exit() == 1
            assert "fp8" in gateway.log().strip().splitlines()[-1].lower()


async def test_a_pause_and_a_sleep_keep_everybody_and_start_nobody(tiny_model):
    engine = {"max_model_len": 512, "num_gpu_blocks_override": 32, "block_size": 32, "enforce_eager": True}
    engine |= {"kv_cache_memory_bytes": 100_000_000, "dtype": "float32"}
    cli = {"model": str(tiny_model), **{f"engine.{name}": value for name, value in engine.items()}}
    runtime = EngineRuntime(load_settings(cli=cli, environ={}))
    runtime.start()
    try:
        assert await runtime.wait() is EnginePhase.READY, runtime.failure
        await _stop_and_go_on(runtime)
    finally:
        await runtime.stop()
    # vLLM's client leaves its ZMQ context to the collector, which says so.
    del runtime
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


async def _stop_and_go_on(runtime: EngineRuntime) -> None:
    from vllm import SamplingParams

    client = runtime.client
    parameters = SamplingParams(max_tokens=60, temperature=0, ignore_eos=True)

    async def text(name: str) -> str:
        async for output in client.generate({"prompt_token_ids": REPEATING}, parameters, name):
            last = output
        return str(last.outputs[0].text)

    alone = await text("alone")
    ways = {
        "pause": (lambda: client.pause_generation(mode="keep", clear_cache=False), client.resume_generation),
        "sleep": (lambda: client.sleep(1, mode="keep"), client.wake_up),
    }
    for way, (stop, go_on) in ways.items():
        before = [asyncio.create_task(text(f"{way}-{number}")) for number in range(12)]
        await asyncio.sleep(0.2)
        await stop()
        late = asyncio.create_task(text(f"{way}-late"))
        await asyncio.sleep(1)
        assert not late.done()
        await go_on()
        assert set(await asyncio.gather(*before, late)) == {alone}
