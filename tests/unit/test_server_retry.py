"""Whatever the reason of a 429 or 503, its client hears when to come back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import httpx
import pytest
import yaml
from fake_gateway import BROKEN, FakeGateway, fake_gateway, snapshot

from proxima_config.api_keys import digest
from proxima_server.errors import KINDS, APIError, ErrorCode

COMPLETIONS = "/v1/completions"
BODY = {"prompt": "Hi"}
SECRET = "sk-test-0123456789abcdef"
KEYED = {"authorization": f"Bearer {SECRET}"}

Ask = Callable[[FakeGateway], Awaitable[httpx.Response]]


async def post(gateway: FakeGateway, **fields: object) -> httpx.Response:
    return await gateway.client.post(COMPLETIONS, json={**BODY, **fields}, headers=KEYED)


async def occupied(gateway: FakeGateway) -> asyncio.Task[httpx.Response]:
    """A request that the engine works on until the gateway ends."""
    gateway.serving.hold.clear()
    asking = asyncio.create_task(post(gateway))
    await gateway.serving.started.wait()
    return asking


async def loading(gateway: FakeGateway) -> httpx.Response:
    return await post(gateway)


async def not_ready(gateway: FakeGateway) -> httpx.Response:
    return await gateway.client.get("/health/ready")


async def failed(gateway: FakeGateway) -> httpx.Response:
    await gateway.ready()
    gateway.runtime.fail("the engine died")
    return await post(gateway)


async def draining(gateway: FakeGateway) -> httpx.Response:
    await gateway.ready()
    await occupied(gateway)
    gateway.stop()
    return await post(gateway)


async def models_of_a_draining_one(gateway: FakeGateway) -> httpx.Response:
    await gateway.ready()
    await occupied(gateway)
    gateway.stop()
    return await gateway.client.get("/v1/models", headers=KEYED)


async def cut_by_the_drain(gateway: FakeGateway) -> httpx.Response:
    await gateway.ready()
    asking = await occupied(gateway)
    gateway.stop()
    gateway.gateway.drain.call_off()
    return await asking


async def told_by_the_engine(gateway: FakeGateway) -> httpx.Response:
    """As vLLM's handlers answer: without a word about when."""
    await gateway.ready()
    gateway.serving.events = [APIError(ErrorCode.ENGINE_OVERLOADED, "busy")]
    return await post(gateway, stream=True)


async def second_request(gateway: FakeGateway) -> httpx.Response:
    await gateway.ready()
    await occupied(gateway)
    return await post(gateway)


async def second_long_request(gateway: FakeGateway) -> httpx.Response:
    await gateway.ready()
    gateway.runtime.snapshot_receiver.latest[0] = snapshot(running=0)
    await occupied(gateway)
    return await post(gateway, prompt="x" * 10_000)


def key(**limits: int) -> dict[str, object]:
    return {"auth": limits}


WAYS = [
    pytest.param(loading, {}, id="loading"),
    pytest.param(not_ready, {}, id="probe"),
    pytest.param(failed, {"lifecycle": {"exit_delay_s": 60}}, id="engine_died"),
    pytest.param(draining, {}, id="draining"),
    pytest.param(models_of_a_draining_one, {}, id="models_while_draining"),
    pytest.param(cut_by_the_drain, {}, id="cut_by_the_drain"),
    pytest.param(told_by_the_engine, {}, id="engine_overloaded"),
    pytest.param(second_request, key(requests_per_min=1), id="requests_per_min"),
    pytest.param(second_request, key(tokens_per_min=1), id="tokens_per_min"),
    pytest.param(second_request, key(max_concurrent=1), id="concurrent"),
    pytest.param(second_long_request, {"door": {"max_queue_tokens": 2}}, id="queue_tokens"),
]


@pytest.mark.parametrize(("ask", "settings"), WAYS)
async def test_it_says_when_to_come_back(ask: Ask, settings: dict[str, dict[str, object]], tmp_path) -> None:
    entry = {"name": "a", "sha256": digest(SECRET), **settings.get("auth", {})}
    (tmp_path / "keys.yaml").write_text(yaml.safe_dump({"keys": [entry]}))
    changed = {**settings, "auth": {"api_keys_file": str(tmp_path / "keys.yaml")}}
    async with fake_gateway(**changed) as gateway:
        response = await ask(gateway)
        assert response.status_code in (429, 503), response.text
        milliseconds, seconds = int(response.headers["retry-after-ms"]), int(response.headers["retry-after"])
        assert 0 < milliseconds <= 120_000
        # Whole seconds are rounded up: who reads them only is not too early.
        assert (seconds - 1) * 1000 < milliseconds <= seconds * 1000
        assert response.headers["x-should-retry"] == "true"


def test_no_other_status_asks_for_it():
    """Codes that a client may try again are those that say when, and three others that say it by themselves."""
    retried = {code for code, kind in KINDS.items() if kind.retry}
    assert {code for code in retried if KINDS[code].status not in (429, 503)} == {
        ErrorCode.REQUEST_TIMEOUT,
        ErrorCode.INTERNAL_ERROR,
    }
    assert all(kind.retry for kind in KINDS.values() if kind.status in (429, 503))


HUGE = "x" * 30_000


@pytest.mark.parametrize(
    ("method", "path", "sent"),
    [
        pytest.param("GET", f"/{HUGE}", {}, id="path"),
        pytest.param("GET", f"/v1/models/{HUGE}", {}, id="model_in_path"),
        pytest.param("POST", f"/debug/profile?prefix={HUGE}", {}, id="query"),
        pytest.param("POST", COMPLETIONS, {"headers": {"content-type": HUGE}, "content": b"{}"}, id="content_type"),
        pytest.param("POST", COMPLETIONS, {"headers": {"content-encoding": HUGE}}, id="content_encoding"),
        pytest.param("POST", COMPLETIONS, {"json": {**BODY, "timeout": HUGE}}, id="timeout"),
        pytest.param("POST", COMPLETIONS, {"json": BODY, "headers": {"x-request-timeout-ms": HUGE}}, id="header"),
        pytest.param("POST", COMPLETIONS, {"json": {**BODY, "service_tier": HUGE}}, id="service_tier"),
        pytest.param("POST", "/generate", {"json": {**BODY, HUGE: 1}}, id="field_name"),
        pytest.param("POST", COMPLETIONS, {"json": {**BODY, "a": {HUGE: 10**30}}}, id="nested_name"),
        pytest.param("POST", COMPLETIONS, {"content": b"[" * 30_000}, id="nesting"),
        pytest.param(HUGE[:200], COMPLETIONS, {}, id="method"),
    ],
)
async def test_no_input_makes_an_error_long(method, path, sent):
    async with fake_gateway() as gateway:
        await gateway.ready()
        sent.setdefault("headers", {}).setdefault("content-type", "application/json")
        response = await gateway.client.request(method, path, **sent)
    assert 400 <= response.status_code < 500
    assert len(response.content) < 4_000
    assert response.json()["error"]["code"] != BROKEN.code
