"""What a real gateway does to many requests when it is told to stop, and when its engine hangs or dies.

Two starts of an engine and one restart in all: each drill goes on where the last one ended.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from gateway_process import GatewayProcess

pytestmark = [pytest.mark.engine, pytest.mark.slow]

SMALL = ["--max-model-len", "2048", "--kv-cache-memory-bytes", "200000000", "--enforce-eager"]
COMPLETIONS = "/v1/completions"
PROBES = ("/health/live", "/health/ready", "/health/startup")
STREAMS = 64
HANG_S = 5


def body(tokens: int, **more: object) -> dict[str, object]:
    return {"prompt": "a", "max_tokens": tokens, "ignore_eos": True, "stream": True, **more}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


class Stream:
    """One streamed answer, read in the background."""

    def __init__(self, client: httpx.AsyncClient, tokens: int) -> None:
        self.events: list[str] = []
        self.begun = asyncio.Event()
        self.ended = asyncio.create_task(self._read(client, tokens))

    async def _read(self, client: httpx.AsyncClient, tokens: int) -> None:
        try:
            asked = body(tokens, stream_options={"include_usage": True})
            async with client.stream("POST", COMPLETIONS, json=asked) as response:
                assert response.status_code == 200, await response.aread()
                async for line in response.aiter_lines():
                    if line.startswith("data: "):
                        self.events.append(line.removeprefix("data: "))
                        self.begun.set()
        finally:
            self.begun.set()

    def assert_complete(self, tokens: int) -> None:
        assert self.events[-1] == "[DONE]"
        # A chunk may hold several tokens, where who sends them is behind the engine.
        *chunks, last = (json.loads(event) for event in self.events[:-1])
        assert len(chunks) > 1
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        assert last["usage"]["completion_tokens"] == tokens


def connect(gateway: GatewayProcess) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=gateway.url, trust_env=False, timeout=240, limits=httpx.Limits(max_connections=None)
    )


async def statuses(client: httpx.AsyncClient) -> tuple[int, ...]:
    return tuple([(await client.get(path)).status_code for path in PROBES])


async def until(client: httpx.AsyncClient, *wanted: int) -> None:
    async with asyncio.timeout(240):
        while await statuses(client) != wanted:
            await asyncio.sleep(0.2)


def send(gateway: GatewayProcess, number: signal.Signals) -> None:
    for process in gateway.engine_processes():
        process.send_signal(number)


@pytest.fixture
def native(tiny_model: Path, log: Path) -> Iterator[GatewayProcess]:
    flags = ["--scheduler", "native", "--hang-s", str(HANG_S), "--drain-s", "180"]
    with GatewayProcess([str(tiny_model), *SMALL, *flags], log) as gateway:
        gateway.wait_ready()
        yield gateway


async def test_a_stopped_engine_is_told_and_may_go_on_and_sigterm_loses_no_stream(native):
    async with connect(native) as client:
        await _stop_and_go_on(native, client)
        await _drain(native, client)
    assert await asyncio.to_thread(native.wait_exit) == 0
    assert not native.engine_processes()


async def _stop_and_go_on(gateway: GatewayProcess, client: httpx.AsyncClient) -> None:
    # Idle, it has nothing to do: that is no hang.
    send(gateway, signal.SIGSTOP)
    await asyncio.sleep(HANG_S + 3)
    assert await statuses(client) == (200, 200, 200)
    stream = Stream(client, 50)
    await until(client, 503, 503, 200)
    told = (await client.get("/health/live")).json()
    assert "hangs" in told["failure"]
    send(gateway, signal.SIGCONT)
    await stream.ended
    stream.assert_complete(50)
    await until(client, 200, 200, 200)


async def _drain(gateway: GatewayProcess, client: httpx.AsyncClient) -> None:
    streams = [Stream(client, 200) for _ in range(STREAMS)]
    for stream in streams:
        await stream.begun.wait()
    gateway.process.send_signal(signal.SIGTERM)
    await until(client, 200, 503, 200)
    draining = (await client.get("/health/ready")).json()["draining"]
    assert 0 < draining["remaining_requests"] <= STREAMS
    assert 0 < draining["remaining_s"] <= 180
    refused = await client.post(COMPLETIONS, json=body(1))
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_draining")
    assert refused.headers["connection"] == "close"
    # Five seconds and a share that differs, so that not all come back at once.
    assert 5 <= int(refused.headers["retry-after"]) <= 7
    assert "proxima_draining 1.0" in (await client.get("/metrics")).text
    await asyncio.gather(*(stream.ended for stream in streams))
    for stream in streams:
        stream.assert_complete(200)


@pytest.fixture
def restarting(tiny_model: Path, log: Path) -> Iterator[GatewayProcess]:
    flags = ["--max-restarts", "1", "--hang-s", str(HANG_S), "--exit-delay-s", "10"]
    with GatewayProcess([str(tiny_model), *SMALL, *flags], log) as gateway:
        gateway.wait_ready()
        yield gateway


async def test_a_killed_engine_is_started_again_and_beyond_the_budget_the_process_ends(restarting):
    async with connect(restarting) as client:
        await _kill_and_restart(restarting, client)
        await _hang_beyond_the_budget(restarting, client)
    assert await asyncio.to_thread(restarting.wait_exit) == 1
    assert "proxima: error: the engine hangs" in restarting.log().strip().splitlines()[-1]


async def _kill_and_restart(gateway: GatewayProcess, client: httpx.AsyncClient) -> None:
    stream = Stream(client, 2000)
    await stream.begun.wait()
    lives = asyncio.create_task(_liveness(client))
    send(gateway, signal.SIGKILL)
    await asyncio.wait_for(stream.ended, 30)
    assert json.loads(stream.events[-1])["error"]["code"] == "engine_unavailable"
    assert "[DONE]" not in stream.events
    await until(client, 200, 503, 200)
    refused = await client.post(COMPLETIONS, json=body(1))
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_unavailable")
    await until(client, 200, 200, 200)
    # It would have ended with what it found.
    assert not lives.done()
    lives.cancel()
    again = Stream(client, 20)
    await again.ended
    again.assert_complete(20)
    assert (await client.get("/health")).json()["restarts"] == 1
    assert "vllm:num_requests_running" in (await client.get("/metrics")).text


async def _liveness(client: httpx.AsyncClient) -> None:
    while True:
        assert (await client.get("/health/live")).status_code == 200
        await asyncio.sleep(0.1)


async def _hang_beyond_the_budget(gateway: GatewayProcess, client: httpx.AsyncClient) -> None:
    stream = Stream(client, 2000)
    await stream.begun.wait()
    send(gateway, signal.SIGSTOP)
    await asyncio.wait_for(stream.ended, 60)
    assert json.loads(stream.events[-1])["error"]["code"] == "engine_unavailable"
    await until(client, 503, 503, 200)
