"""A thousand streams that nobody writes to: what they cost, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

pytestmark = pytest.mark.slow

STREAMS = 1000
WATCHED_S = 20
"""Long enough for pings, which come every 15 s."""
MAX_KIB_PER_STREAM = 160
MAX_KIB_MORE_PER_STREAM = 8
"""What a second thousand may add to the first: the allocator keeps memory for it."""
SUPPORT = Path(__file__).resolve().parents[1] / "support"

BODY = b'{"stream": true, "prompt": "Hi"}'
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


@pytest.fixture
def server() -> Iterator[tuple[psutil.Process, str]]:
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT)}
    process = Popen([sys.executable, SUPPORT / "idle_gateway.py"], stdout=PIPE, text=True, env=environment)
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    yield psutil.Process(process.pid), url
    process.kill()
    process.wait()
    process.stdout.close()


@asynccontextmanager
async def idle_stream(url: str) -> AsyncIterator[None]:
    """A stream whose first event has arrived."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    writer.write(HEAD % len(BODY) + BODY)
    await reader.readuntil(b"data: ")
    try:
        yield
    finally:
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def a_thousand(url: str) -> AsyncIterator[None]:
    async with AsyncExitStack() as streams:
        for _ in range(STREAMS):
            await streams.enter_async_context(idle_stream(url))
        yield


async def values(client: httpx.AsyncClient) -> dict[str, float]:
    families = text_string_to_metric_families((await client.get("/metrics")).text)
    return {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}


async def test_a_thousand_idle_streams_cost_less_than_a_core_and_bounded_memory(server, capsys):
    process, url = server
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client:
        async with AsyncExitStack() as warm:
            for _ in range(20):
                await warm.enter_async_context(idle_stream(url))
        before = await settled(client)
        sockets = process.num_fds()
        resting_kib = memory_kib(process)

        async with a_thousand(url):
            held = await values(client)
            used_s = cpu_s(process)
            await asyncio.sleep(WATCHED_S)
            cores = (cpu_s(process) - used_s) / WATCHED_S
            grown_kib = memory_kib(process) - resting_kib
        await settled(client)
        async with a_thousand(url):
            more_kib = memory_kib(process) - resting_kib - grown_kib
        after = await settled(client)
    tasks = (held["proxima_event_loop_tasks"] - before["proxima_event_loop_tasks"]) / STREAMS
    said = (
        f"\n{STREAMS} idle streams: {cores:.3f} cores, {grown_kib / STREAMS:.0f} KiB and {tasks:.1f} tasks each; "
        f"{more_kib / STREAMS:.0f} KiB each more the second time\n"
    )
    with capsys.disabled():
        sys.stdout.write(said)
    assert cores < 1
    assert grown_kib < STREAMS * MAX_KIB_PER_STREAM
    assert more_kib < STREAMS * MAX_KIB_MORE_PER_STREAM
    assert held["proxima_http_requests_in_flight"] == STREAMS + 1, "and the scrape"
    assert after["proxima_event_loop_tasks"] == before["proxima_event_loop_tasks"]
    assert process.num_fds() <= sockets


async def settled(client: httpx.AsyncClient) -> dict[str, float]:
    """Once nothing but the scrape is in flight."""
    async with asyncio.timeout(60):
        while True:
            found = await values(client)
            if found["proxima_http_requests_in_flight"] == 1:
                return found


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def memory_kib(process: psutil.Process) -> float:
    return process.memory_info().rss / 1024
