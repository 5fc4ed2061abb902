"""Two data-parallel ranks, one of which stops: the one that goes on does not hide it."""

from __future__ import annotations

import asyncio
import re
import signal
from pathlib import Path

import httpx
import psutil
import pytest
from gateway_process import GatewayProcess

pytestmark = [pytest.mark.engine, pytest.mark.slow]

HANG_S = 5
FLAGS = ["--data-parallel-size", "2", "--max-model-len", "512", "--kv-cache-memory-bytes", "50000000"]
FLAGS += ["--enforce-eager", "--hang-s", str(HANG_S)]
BODY = {"prompt": "a", "max_tokens": 100, "ignore_eos": True}


def rank_of(process: psutil.Process) -> int | None:
    found = re.search(r"EngineCore_DP(\d+)", " ".join(process.cmdline()))
    return int(found[1]) if found else None


async def test_one_hung_rank_of_two_fails_liveness_and_may_go_on(tiny_model: Path, tmp_path: Path) -> None:
    with GatewayProcess([str(tiny_model), *FLAGS], tmp_path / "log") as gateway:
        gateway.wait_ready()
        (second,) = [process for process in gateway.engine_processes() if rank_of(process) == 1]
        async with httpx.AsyncClient(base_url=gateway.url, trust_env=False, timeout=240) as client:
            second.send_signal(signal.SIGSTOP)
            # They are shared out in turn: some wait for the rank that hangs, the others are answered meanwhile.
            asking = [asyncio.create_task(client.post("/v1/completions", json=BODY)) for _ in range(4)]
            async with asyncio.timeout(240):
                while (live := await client.get("/health/live")).status_code == 200:
                    await asyncio.sleep(0.2)
                    if all(task.done() for task in asking):
                        pytest.fail("no request went to the rank that hangs")
                    # The other rank goes on working.
                    if sum(not task.done() for task in asking) < 4:
                        asking.append(asyncio.create_task(client.post("/v1/completions", json=BODY)))
            assert "rank 1 of the engine hangs" in live.json()["failure"]
            assert any(task.done() and task.result().status_code == 200 for task in asking)
            second.send_signal(signal.SIGCONT)
            assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}
            async with asyncio.timeout(60):
                while (await client.get("/health/live")).status_code != 200:
                    await asyncio.sleep(0.2)
