"""Taking a profile: what it asks the engine for, and what it refuses."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_gateway import FakeGateway, fake_gateway

from proxima_server.errors import KINDS, ErrorCode


class ProfiledClient:
    """The part of AsyncLLM that profiles."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.running = asyncio.Event()
        self.stopped = asyncio.Event()

    async def start_profile(self, profile_prefix: str | None = None) -> None:
        self._prefix = profile_prefix or "trace"
        self.running.set()

    async def stop_profile(self) -> None:
        (self._folder / f"{self._prefix}.json.gz").touch()
        self.stopped.set()


def set_up(gateway: FakeGateway, folder: Path) -> ProfiledClient:
    (folder / "old.json.gz").touch()
    client = ProfiledClient(folder)
    gateway.runtime.client = client
    config = SimpleNamespace(profiler="torch", torch_profiler_dir=str(folder), proton_profiler_dir="")
    gateway.runtime.args = SimpleNamespace(profiler_config=config)
    return client


async def test_it_says_which_files_it_made(tmp_path):
    async with fake_gateway() as gateway:
        await gateway.ready()
        set_up(gateway, tmp_path)
        answer = await gateway.client.post("/debug/profile", params={"duration_s": 0.01, "prefix": "busy"})
    assert answer.json() == {
        "profiler": "torch",
        "duration_s": 0.01,
        "folder": str(tmp_path),
        "files": ["busy.json.gz"],
    }


async def test_a_gateway_that_is_not_set_up_for_it_says_how():
    async with fake_gateway() as gateway:
        await gateway.ready()
        gateway.runtime.args = SimpleNamespace(profiler_config=None)
        answer = await gateway.client.post("/debug/profile")
    assert answer.status_code == KINDS[ErrorCode.NOT_SUPPORTED].status
    assert "--profiler-config.profiler torch" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("params", "name"),
    [
        pytest.param({"duration_s": 0}, "duration_s", id="no_time"),
        pytest.param({"duration_s": 3600}, "duration_s", id="too_long"),
        pytest.param({"duration_s": "x"}, "duration_s", id="no_number"),
        pytest.param({"prefix": "../x"}, "prefix", id="elsewhere"),
    ],
)
async def test_parameters_out_of_bounds_are_refused_by_name(tmp_path, params, name):
    async with fake_gateway() as gateway:
        await gateway.ready()
        client = set_up(gateway, tmp_path)
        answer = await gateway.client.post("/debug/profile", params=params)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == name
    assert not client.running.is_set()


async def test_one_at_a_time(tmp_path):
    async with fake_gateway() as gateway:
        await gateway.ready()
        client = set_up(gateway, tmp_path)
        first = asyncio.create_task(gateway.client.post("/debug/profile", params={"duration_s": 0.2}))
        await client.running.wait()
        second = await gateway.client.post("/debug/profile")
        assert second.status_code == 409
        assert (await first).status_code == 200


async def test_before_the_engine_is_ready_there_is_nothing_to_profile():
    async with fake_gateway() as gateway:
        assert (await gateway.client.post("/debug/profile")).status_code == 503


async def test_a_client_that_leaves_ends_it(tmp_path):
    async with fake_gateway() as gateway:
        await gateway.ready()
        client = set_up(gateway, tmp_path)
        asking = asyncio.create_task(gateway.client.post("/debug/profile", params={"duration_s": 60}))
        await client.running.wait()
        asking.cancel()
        await client.stopped.wait()
