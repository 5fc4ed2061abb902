"""A pool too small for all, on the real engine: who starts first, how long a head waits, what preemption costs."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from gateway_process import GatewayProcess

from proxima_config.forced_length import FIELD, PROCESSOR

pytestmark = pytest.mark.engine

BOTH = ["proxima", pytest.param("native", marks=pytest.mark.slow)]
MAX_WAIT_S = 2.0
# 39 usable blocks of 32 tokens: one long prompt and a long answer do not fit together, short ones fit beside either.
POOL = ["--max-model-len", "1024", "--num-gpu-blocks-override", "40", "--block-size", "32", "--enforce-eager"]
# Float32, so that what shares a batch with a request cannot change what it samples.
POOL += ["--kv-cache-memory-bytes", "100000000", "--max-wait-s", str(MAX_WAIT_S), "--dtype", "float32"]
POOL += ["--logits-processors", PROCESSOR]
LONG_ANSWER = {"prompt": [6] * 400, "max_tokens": 600}
LONG_PROMPT = {"prompt": [5] * 900, "max_tokens": 4}


@pytest.fixture(scope="module")
def gateway(request, tiny_model, tmp_path_factory) -> Iterator[GatewayProcess]:
    log = tmp_path_factory.mktemp(request.param) / "log"
    with GatewayProcess([str(tiny_model), *POOL, "--scheduler", request.param], log) as gateway:
        gateway.wait_ready()
        gateway.scheduler = request.param
        yield gateway


class Recorder:
    """Sends streams and notes in which order they start to answer."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self.started: list[str] = []
        self.sent_s: dict[str, float] = {}
        self._first_token: dict[str, asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def send(self, name: str, body: dict[str, Any]) -> None:
        self.sent_s[name] = time.monotonic()
        self._first_token[name] = asyncio.Event()
        self._tasks.append(asyncio.create_task(self._stream(name, body)))

    async def first_token(self, name: str) -> None:
        await self._first_token[name].wait()

    def has_started(self, name: str) -> bool:
        return self._first_token[name].is_set()

    async def finish(self) -> None:
        await asyncio.gather(*self._tasks)

    async def _stream(self, name: str, body: dict[str, Any]) -> None:
        body = {"ignore_eos": True, "stream": True, **body}
        async with self._client.stream("POST", "/v1/completions", json=body) as response:
            async for line in response.aiter_lines():
                assert '"error"' not in line
                if line.startswith("data: ") and not self.has_started(name):
                    self.started.append(name)
                    self._first_token[name].set()


@pytest.fixture
async def recorder(gateway):
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=gateway.url, trust_env=False, timeout=120, limits=limits) as client:
        yield Recorder(client)


def short(number: int, max_tokens: int) -> dict[str, Any]:
    return {"prompt": [10 + number % 200] * 20, "max_tokens": max_tokens}


@pytest.mark.parametrize("gateway", BOTH, indirect=True)
async def test_short_requests_start_before_a_head_that_does_not_fit(gateway, recorder):
    recorder.send("answer", LONG_ANSWER)
    await recorder.first_token("answer")
    recorder.send("head", LONG_PROMPT)
    # The head is in the queue once another request, sent later, could be there too.
    await recorder._client.get("/metrics")
    for number in range(4):
        recorder.send(f"short{number}", short(number, 8))
    await recorder.finish()
    shorts = {f"short{number}" for number in range(4)}
    head_at = recorder.started.index("head")
    before_head = shorts & set(recorder.started[:head_at])
    assert before_head == (shorts if gateway.scheduler == "proxima" else set())


@pytest.mark.parametrize("gateway", ["proxima"], indirect=True)
async def test_the_head_starts_within_its_age_bound_however_many_short_ones_come(gateway, recorder):
    recorder.send("answer", {**LONG_ANSWER, "max_tokens": 500})
    await recorder.first_token("answer")
    recorder.send("head", LONG_PROMPT)
    number = 0
    while not recorder.has_started("head"):
        recorder.send(f"short{number}", short(number, 8))
        number += 1
        await asyncio.sleep(0.05)
    await recorder.finish()
    passed_by = recorder.started[: recorder.started.index("head")]
    assert any(name.startswith("short") for name in passed_by)
    # Nobody passes it after twice the bound. To send takes time of its own.
    latest = max(recorder.sent_s[name] for name in passed_by)
    assert latest - recorder.sent_s["head"] < 2 * MAX_WAIT_S + 1


SEEDED = {"prompt": [9] * 500, "max_tokens": 200, "ignore_eos": True, "temperature": 1.0, "seed": 77}


@pytest.mark.parametrize("gateway", BOTH, indirect=True)
async def test_a_seed_gives_the_same_text_though_the_request_was_preempted(gateway):
    """Each needs 22 of the 39 blocks in the end, so one of them loses its blocks and is computed again."""
    neighbour = {**SEEDED, "prompt": [8] * 500, "seed": 78}
    # Proxima would let the second one wait. After many short answers to such prompts it expects another.
    short_answer = {**SEEDED, "prompt": [7] * 500, "seed": 79, "ignore_eos": False, "vllm_xargs": {FIELD: 4}}
    async with httpx.AsyncClient(base_url=gateway.url, trust_env=False, timeout=120) as client:

        async def text(body: dict[str, Any]) -> str:
            answer = (await client.post("/v1/completions", json=body)).json()
            assert "error" not in answer
            return answer["choices"][0]["text"]

        await asyncio.gather(*(text(short_answer) for _ in range(80)))
        alone = [await text(neighbour), await text(SEEDED)]
        before = await preemptions(client)
        together = await asyncio.gather(text(neighbour), text(SEEDED))
        assert await preemptions(client) > before
    assert together == alone


async def preemptions(client: httpx.AsyncClient) -> float:
    metrics = (await client.get("/metrics")).text
    found = re.search(r"^vllm:num_preemptions_total\{.*\} (\S+)$", metrics, re.MULTILINE)
    assert found
    return float(found[1])
