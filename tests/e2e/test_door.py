"""Keys, turns and deadlines on an engine that is too small for what is asked, with a model that loads at once."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from gateway_process import GatewayProcess

from proxima_config.api_keys import digest

pytestmark = [pytest.mark.engine, pytest.mark.slow]

FLAGS = ["--max-model-len", "2048", "--kv-cache-memory-bytes", "100000000", "--enforce-eager", "--max-num-seqs", "4"]
FLAGS += ["--engine-backlog", "4", "--first-token-timeout-s", "3"]
BODY = {"prompt": [7] * 40, "max_tokens": 60, "ignore_eos": True}


def secret(name: str) -> str:
    return f"sk-test-{name}-0123456789"


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret(name)}"}


def write_keys(path: Path, **entries: dict[str, Any]) -> None:
    keys = [{"name": name, "sha256": digest(secret(name)), **entry} for name, entry in entries.items()]
    new = path.with_suffix(".new")
    new.write_text(yaml.safe_dump({"keys": keys}))
    new.replace(path)


KEYS: dict[str, dict[str, Any]] = {
    "flood": {},
    "small": {},
    "vip": {"class": "priority"},
    "patient": {"first_token_timeout_s": 0, "request_timeout_s": 0},
    "neighbour": {"first_token_timeout_s": 0, "request_timeout_s": 0},
    "counted": {"tokens_per_min": 1000, "requests_per_min": 100},
}


@pytest.fixture(scope="module")
def keys_path(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys.yaml"
    write_keys(path, **KEYS)
    return path


@pytest.fixture(scope="module")
def gateway(tiny_model, keys_path, tmp_path_factory) -> Iterator[GatewayProcess]:
    arguments = [str(tiny_model), *FLAGS, "--api-keys-file", str(keys_path)]
    with GatewayProcess(arguments, tmp_path_factory.mktemp("door") / "log") as gateway:
        gateway.wait_ready()
        yield gateway


@pytest.fixture
async def client(gateway) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=300)
    async with httpx.AsyncClient(base_url=gateway.url, trust_env=False, timeout=120, limits=limits) as client:
        yield client


async def until_empty(client: httpx.AsyncClient) -> None:
    names = "vllm:num_requests_running|vllm:num_requests_waiting|proxima_door_waiting_requests|proxima_kv_blocks_used"
    async with asyncio.timeout(30):
        while True:
            text = (await client.get("/metrics")).text
            if {float(value) for value in re.findall(rf"^(?:{names})\{{.*\}} (\S+)$", text, re.MULTILINE)} == {0.0}:
                return


async def test_an_answer_that_has_begun_is_not_late_for_its_first_token(client):
    """Not streamed, so that only the engine knows that it has begun."""
    slow = {**BODY, "max_tokens": 1900}
    responses = await asyncio.gather(
        *(client.post("/v1/completions", json=slow, headers=bearer("small")) for _ in range(4))
    )
    assert {response.status_code for response in responses} == {200}
    assert max(response.elapsed.total_seconds() for response in responses) > 3, "else nothing is shown"


async def test_whoever_waits_too_long_for_its_first_token_is_told_and_the_engine_is_free(client):
    slow = {**BODY, "max_tokens": 1900}
    asking = [client.post("/v1/completions", json=slow, headers=bearer("patient")) for _ in range(4)]
    busy = [asyncio.create_task(each) for each in asking]
    await asyncio.sleep(1)
    late = await asyncio.gather(
        *(
            client.post("/v1/completions", json={**BODY, "stream": stream}, headers=bearer("small"))
            for stream in (False, True)
        )
    )
    assert late[0].status_code == 504
    assert late[0].json()["error"]["code"] == "deadline_exceeded"
    assert late[1].text.count('"deadline_exceeded"') == 1
    assert "[DONE]" not in late[1].text
    assert {(await each).status_code for each in busy} == {200}
    await until_empty(client)


async def test_a_flood_of_one_key_does_not_hold_up_the_other(client):
    """Keys without deadlines: what the door forecasts from the long answers before is not the matter here."""
    order: list[str] = []

    async def ask(name: str) -> None:
        response = await client.post("/v1/completions", json=BODY, headers=bearer(name))
        assert response.status_code == 200, response.text
        order.append(name)

    async with asyncio.TaskGroup() as group:
        for _ in range(60):
            group.create_task(ask("patient"))
        await asyncio.sleep(0.5)
        for _ in range(6):
            group.create_task(ask("neighbour"))
    last = max(number for number, name in enumerate(order) if name == "neighbour")
    already = 16  # in the engine or answered when the neighbour came
    assert last < already + 2 * 6 + 8, order


async def test_priority_does_not_wait_at_the_door_behind_others(client):
    order: list[str] = []

    async def ask(name: str) -> None:
        response = await client.post("/v1/completions", json=BODY, headers=bearer(name))
        assert response.status_code == 200, response.text
        order.append(name)

    async with asyncio.TaskGroup() as group:
        for _ in range(60):
            group.create_task(ask("patient"))
        await asyncio.sleep(0.5)
        group.create_task(ask("vip"))
    assert order.index("vip") < 25, order


async def test_tokens_are_counted_as_the_engine_counts_them(client):
    response = await client.post("/v1/completions", json={**BODY, "max_tokens": 500}, headers=bearer("counted"))
    remaining = int(response.headers["x-ratelimit-remaining-tokens"])
    refilled = 1000 / 60 * response.elapsed.total_seconds()
    assert 1000 - 540 <= remaining <= 1000 - 540 + refilled + 1
    refused = await client.post("/v1/completions", json={**BODY, "max_tokens": 900}, headers=bearer("counted"))
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")


async def test_a_key_can_be_taken_away_and_given_while_it_runs(client, keys_path):
    short = {**BODY, "max_tokens": 1}
    assert (await client.post("/v1/completions", json=short, headers=bearer("new"))).status_code == 401
    write_keys(keys_path, **{name: entry for name, entry in KEYS.items() if name != "flood"}, new={})
    async with asyncio.timeout(10):
        while (await client.post("/v1/completions", json=short, headers=bearer("new"))).status_code != 200:
            await asyncio.sleep(0.1)
    assert (await client.post("/v1/completions", json=short, headers=bearer("flood"))).status_code == 401


def test_an_open_door_is_warned_of(tiny_model, tmp_path):
    with GatewayProcess([str(tiny_model), *FLAGS, "--host", "0.0.0.0"], tmp_path / "log") as gateway:
        gateway.wait_listening()
        assert "EVERYBODY WHO REACHES IT MAY USE THE ENGINE" in gateway.log()


def test_a_bad_keys_file_ends_the_start_in_a_line(tiny_model, tmp_path):
    bad = tmp_path / "keys.yaml"
    bad.write_text("keys:\n  - name: a\n")
    with GatewayProcess([str(tiny_model), *FLAGS, "--api-keys-file", str(bad)], tmp_path / "log") as gateway:
        assert gateway.wait_exit() == 2
    assert gateway.log().strip().splitlines()[-1] == f"proxima: error: {bad}: key 1 (a): sha256: Field required"
