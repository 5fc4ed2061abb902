"""The door over HTTP: keys, limits, headers, refusals, deadlines, turns."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import yaml
from fake_gateway import FakeGateway, fake_gateway, snapshot
from prometheus_client.parser import text_string_to_metric_families

from proxima_config.api_keys import digest
from proxima_server.door.open_door import is_local

COMPLETIONS = "/v1/completions"
BODY = {"model": "fake", "prompt": "Hi"}


def secret(name: str) -> str:
    return f"sk-test-{name}-0123456789"


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret(name)}"}


@pytest.fixture
def keys_file(tmp_path):
    """Makes the section `auth` from entries by name."""

    def write(**entries: dict[str, Any]) -> dict[str, Any]:
        path = tmp_path / "keys.yaml"
        keys = [{"name": name, "sha256": digest(secret(name)), **entry} for name, entry in entries.items()]
        path.write_text(yaml.safe_dump({"keys": keys}))
        return {"api_keys_file": str(path)}

    return write


async def metric(gateway: FakeGateway, name: str, **labels: str) -> float:
    families = text_string_to_metric_families((await gateway.client.get("/metrics")).text)
    found = (sample for family in families for sample in family.samples)
    return next(sample.value for sample in found if (sample.name, sample.labels) == (name, labels))


# -- keys ----------------------------------------------------------------------------------------------------------


async def test_without_a_valid_key_nobody_gets_in(keys_file):
    async with fake_gateway(auth=keys_file(a={})) as gateway:
        await gateway.ready()
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {secret('a')}"}):
            for method, path in (("POST", COMPLETIONS), ("POST", "/generate"), ("GET", "/v1/models"), ("GET", "/no")):
                response = await gateway.client.request(method, path, json=BODY, headers=headers)
                assert response.status_code == 401
                assert response.json()["error"]["code"] == "invalid_api_key"
                assert response.headers["www-authenticate"].startswith("Bearer")
                assert response.headers["x-should-retry"] == "false"
        assert not gateway.serving.bodies
        assert await metric(gateway, "proxima_rejections_total", reason="key") == 12


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param(bearer("a"), id="openai"),
        pytest.param({"authorization": f"bearer  {secret('a')}"}, id="lower_case"),
        pytest.param({"x-api-key": secret("a")}, id="anthropic"),
        pytest.param({"api-key": secret("a")}, id="azure"),
    ],
)
async def test_a_key_opens_in_each_client_s_way(keys_file, headers):
    async with fake_gateway(auth=keys_file(a={})) as gateway:
        await gateway.ready()
        assert (await gateway.client.post(COMPLETIONS, json=BODY, headers=headers)).status_code == 200


async def test_probes_scrapes_and_docs_need_no_key(keys_file):
    async with fake_gateway(auth=keys_file(a={})) as gateway:
        await gateway.ready()
        for path in ("/health", "/health/live", "/health/ready", "/metrics", "/docs", "/openapi.json", "/version"):
            assert (await gateway.client.get(path)).status_code == 200
        assert await metric(gateway, "proxima_api_keys") == 1


async def test_a_key_is_for_its_models(keys_file):
    async with fake_gateway(auth=keys_file(a={"models": ["org/adapter"]})) as gateway:
        await gateway.ready()
        for path in (COMPLETIONS, "/tokenize"):
            refused = await gateway.client.post(path, json=BODY, headers=bearer("a"))
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "permission_denied")
            assert refused.json()["error"]["param"] == "model"
        allowed = await gateway.client.post(COMPLETIONS, json={**BODY, "model": "org/adapter"}, headers=bearer("a"))
        assert allowed.status_code == 200
        listed = (await gateway.client.get("/v1/models", headers=bearer("a"))).json()
        assert [card["id"] for card in listed["data"]] == ["org/adapter"]
        assert (await gateway.client.get("/v1/models/fake", headers=bearer("a"))).status_code == 404


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False), ("gw.example", False)],
)
def test_which_addresses_are_open_to_others(host, local):
    assert is_local(host) is local


# -- limits --------------------------------------------------------------------------------------------------------


async def test_limits_are_told_and_enforced(keys_file):
    async with fake_gateway(auth=keys_file(a={"requests_per_min": 2, "tokens_per_min": 100}, b={})) as gateway:
        await gateway.ready()
        first = await gateway.client.post(COMPLETIONS, json={**BODY, "max_tokens": 10}, headers=bearer("a"))
        assert first.status_code == 200
        assert first.headers["x-ratelimit-limit-requests"] == "2"
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        assert first.headers["x-ratelimit-reset-requests"].endswith("s")
        assert first.headers["x-ratelimit-limit-tokens"] == "100"
        assert int(first.headers["x-ratelimit-remaining-tokens"]) >= 93, "what was not used is given back"
        await gateway.client.post(COMPLETIONS, json=BODY, headers=bearer("a"))
        refused = await gateway.client.post(COMPLETIONS, json=BODY, headers=bearer("a"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert "'a' of 2 requests per minute" in refused.json()["error"]["message"]
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert 25_000 < int(refused.headers["retry-after-ms"]) < 40_000
        assert 25 < int(refused.headers["retry-after"]) <= 40
        assert refused.headers["x-should-retry"] == "true"
        other = await gateway.client.post(COMPLETIONS, json=BODY, headers=bearer("b"))
        assert other.status_code == 200
        assert not [name for name in other.headers if name.startswith("x-ratelimit")]
        assert await metric(gateway, "proxima_rejections_total", reason="requests_per_min") == 1


async def test_a_request_larger_than_the_limit_is_not_to_be_retried(keys_file):
    async with fake_gateway(auth=keys_file(a={"tokens_per_min": 100})) as gateway:
        await gateway.ready()
        refused = await gateway.client.post(COMPLETIONS, json={**BODY, "max_tokens": 101}, headers=bearer("a"))
    assert refused.status_code == 429
    assert refused.headers["x-should-retry"] == "false"
    assert "retry-after" not in refused.headers


async def test_requests_at_once_count_until_their_streams_end(keys_file):
    async with fake_gateway(auth=keys_file(a={"max_concurrent": 1})) as gateway:
        await gateway.ready()
        gateway.serving.hold.clear()
        async with gateway.client.stream("POST", COMPLETIONS, json={**BODY, "stream": True}, headers=bearer("a")) as s:
            # Kept: an iterator that is dropped closes the connection.
            chunks = s.aiter_bytes()
            await anext(chunks)
            refused = await gateway.client.post(COMPLETIONS, json=BODY, headers=bearer("a"))
            assert refused.status_code == 429
            assert 0 < int(refused.headers["retry-after-ms"]) <= 120_000
        gateway.serving.hold.set()
        async with asyncio.timeout(5):
            while (await gateway.client.post(COMPLETIONS, json=BODY, headers=bearer("a"))).status_code != 200:
                pass


# -- the queue -----------------------------------------------------------------------------------------------------


async def test_a_full_queue_refuses_and_tells_when_to_come_back():
    async with fake_gateway(door={"max_queue_requests": 3}) as gateway:
        await gateway.ready()
        gateway.serving.hold.clear()
        async with asyncio.TaskGroup() as group:
            admitted = [group.create_task(gateway.client.post(COMPLETIONS, json=BODY)) for _ in range(3)]
            while len(gateway.serving.bodies) < 3:
                await asyncio.sleep(0)
            refused = await gateway.client.post(COMPLETIONS, json=BODY)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
            assert int(refused.headers["retry-after-ms"]) <= 1000 * int(refused.headers["retry-after"]) <= 120_000
            assert refused.headers["x-should-retry"] == "true"
            # What runs does not count: the scheduler says that two of the three do.
            gateway.runtime.snapshot_receiver.latest[0] = snapshot(running=2, waiting={"blocks": {"default": 1}})
            admitted.append(group.create_task(gateway.client.post(COMPLETIONS, json=BODY)))
            while len(gateway.serving.bodies) < 4:
                await asyncio.sleep(0)
            gateway.serving.hold.set()
        assert {task.result().status_code for task in admitted} == {200}
        assert await metric(gateway, "proxima_rejections_total", reason="queue_requests") == 1


async def test_a_gateway_without_configuration_takes_a_burst():
    async with fake_gateway() as gateway:
        await gateway.ready()
        gateway.serving.hold.clear()
        async with asyncio.TaskGroup() as group:
            burst = [group.create_task(gateway.client.post(COMPLETIONS, json=BODY)) for _ in range(100)]
            while len(gateway.serving.bodies) < 100:
                await asyncio.sleep(0)
            gateway.serving.hold.set()
        assert {task.result().status_code for task in burst} == {200}


async def test_every_503_tells_when_to_retry():
    async with fake_gateway() as gateway:
        refused = await gateway.client.post(COMPLETIONS, json=BODY)
    assert refused.status_code == 503
    said_s = int(refused.headers["retry-after"])
    assert 0 < int(refused.headers["retry-after-ms"]) <= 1000 * said_s <= 120_000
    assert refused.headers["x-should-retry"] == "true"


async def test_the_tokenizer_needs_no_place_in_the_queue():
    async with fake_gateway(door={"max_queue_requests": 1}) as gateway:
        await gateway.ready()
        gateway.serving.hold.clear()
        async with asyncio.TaskGroup() as group:
            group.create_task(gateway.client.post(COMPLETIONS, json=BODY))
            while not gateway.serving.bodies:
                await asyncio.sleep(0)
            asked = group.create_task(gateway.client.post("/tokenize", json=BODY))
            while len(gateway.serving.bodies) < 2:
                await asyncio.sleep(0)
            gateway.serving.hold.set()
        assert asked.result().status_code == 200


# -- hints ---------------------------------------------------------------------------------------------------------


async def told(gateway: FakeGateway, body: dict[str, Any], headers: dict[str, str] | None = None) -> dict[str, Any]:
    response = await gateway.client.post(COMPLETIONS, json=body, headers=headers)
    assert response.status_code == 200
    return gateway.serving.bodies[-1].get("vllm_xargs") or {}


async def test_the_scheduler_is_told_nothing_that_it_does_not_know():
    async with fake_gateway() as gateway:
        await gateway.ready()
        assert await told(gateway, BODY) == {"proxima_class": "default"}


async def test_the_scheduler_is_told_class_deadlines_and_tenant(keys_file):
    auth = keys_file(a={"class": "priority", "weight": 3, "first_token_timeout_s": 5})
    async with fake_gateway(auth=auth, deadlines={"request_timeout_s": 60}) as gateway:
        await gateway.ready()
        hints = await told(gateway, BODY, bearer("a"))
    assert (hints["proxima_class"], hints["proxima_tenant"], hints["proxima_weight"]) == ("priority", "a", 3)
    assert hints["proxima_ttft_budget_s"] == pytest.approx(5, abs=1)
    assert hints["proxima_deadline_s"] == pytest.approx(60, abs=1)


async def test_long_prompts_have_a_class_of_their_own():
    async with fake_gateway(door={"long_prompt_tokens": 100}) as gateway:
        await gateway.ready()
        assert (await told(gateway, {**BODY, "prompt": "word " * 200}))["proxima_class"] == "long"
        assert (await told(gateway, {**BODY, "prompt": "word " * 20}))["proxima_class"] == "default"
        assert (await told(gateway, {**BODY, "prompt": [7] * 100}))["proxima_class"] == "long"


@pytest.mark.parametrize("trusted", [False, True])
async def test_hints_of_clients_pass_only_with_a_key_that_allows_it(keys_file, trusted):
    async with fake_gateway(auth=keys_file(a={"trust_hints": trusted})) as gateway:
        await gateway.ready()
        body = {**BODY, "vllm_xargs": {"proxima_class": "priority", "proxima_tenant": "other", "mine": 1}}
        hints = await told(gateway, body, bearer("a"))
    assert hints["mine"] == 1
    assert hints.get("proxima_class") == ("priority" if trusted else "default")
    assert hints["proxima_tenant"] == ("other" if trusted else "a")


# -- deadlines -----------------------------------------------------------------------------------------------------


def asks(kind: str, timeout_s: float) -> tuple[dict[str, Any], dict[str, str], dict[str, Any]]:
    """Settings, headers and fields of the body: the three ways to set a total: settings, header, body."""
    if kind == "settings":
        return {"deadlines": {"request_timeout_s": timeout_s}}, {}, {}
    if kind == "header":
        return {}, {"x-request-timeout-ms": str(int(timeout_s * 1000))}, {}
    return {}, {}, {"timeout": timeout_s}


@pytest.mark.parametrize("kind", ["settings", "header", "body"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_the_total_deadline_ends_an_answer(kind, stream):
    settings, headers, fields = asks(kind, 0.4)
    async with fake_gateway(**settings) as gateway:
        await gateway.ready()
        gateway.serving.hold.clear()
        response = await gateway.client.post(COMPLETIONS, json={**BODY, **fields, "stream": stream}, headers=headers)
        await asyncio.wait_for(gateway.serving.ended.wait(), 5)
        assert "timeout" not in gateway.serving.bodies[-1], "vLLM knows no such field"
        assert await metric(gateway, "proxima_deadlines_expired_total", deadline="total") == 1
        # Deadlines that clients choose are no measure of the service: alerts count what failed.
        outcome = "failed" if kind == "settings" else "aborted"
        assert await metric(gateway, "proxima_requests_total", outcome=outcome, **{"class": "default"}) == 1
    if stream:
        first, last = response.text.strip().split("\n\n")
        assert '"text": "!"' in first
        error = json.loads(last.removeprefix("data: "))["error"]
    else:
        assert response.status_code == 504
        assert response.headers["x-should-retry"] == "false"
        error = response.json()["error"]
    assert error["code"] == "deadline_exceeded"
    assert "0.4 s" in error["message"]


async def test_what_vllm_says_to_being_cancelled_is_not_what_the_client_hears():
    async with fake_gateway(deadlines={"request_timeout_s": 0.05}) as gateway:
        await gateway.ready()
        gateway.serving.hold.clear()
        gateway.serving.swallows_cancelling = True
        response = await gateway.client.post(COMPLETIONS, json=BODY)
    assert (response.status_code, response.json()["error"]["code"]) == (504, "deadline_exceeded")


async def test_a_stream_that_has_not_begun_at_its_deadline_is_an_http_error():
    async with fake_gateway(deadlines={"first_token_timeout_s": 0.05}) as gateway:
        await gateway.ready()
        gateway.serving.wait_first.clear()
        response = await gateway.client.post(COMPLETIONS, json={**BODY, "stream": True})
        assert (response.status_code, response.json()["error"]["code"]) == (504, "deadline_exceeded")
        assert await metric(gateway, "proxima_deadlines_expired_total", deadline="first_token") == 1


@pytest.mark.parametrize("deadline", ["queue", "first_token"])
async def test_a_deadline_for_the_start_says_nothing_about_an_answer_that_has_begun(deadline):
    async with fake_gateway(deadlines={f"{deadline}_timeout_s": 0.05}) as gateway:
        await gateway.ready()
        gateway.serving.hold.clear()
        gateway.serving.first_token = True
        asking = asyncio.create_task(gateway.client.post(COMPLETIONS, json=BODY))
        await asyncio.sleep(0.3)
        gateway.serving.hold.set()
        assert (await asking).status_code == 200


async def test_the_queue_deadline_is_over_when_nobody_waits_any_more():
    async with fake_gateway(deadlines={"queue_timeout_s": 0.05}) as gateway:
        await gateway.ready()
        gateway.serving.hold.clear()
        latest = gateway.runtime.snapshot_receiver.latest
        latest[0] = snapshot(waiting={})
        prefilling = asyncio.create_task(gateway.client.post(COMPLETIONS, json=BODY))
        await asyncio.sleep(0.3)
        assert not prefilling.done()
        latest[0] = snapshot(waiting={"blocks": {"default": 1}})
        response = await prefilling
        assert (response.status_code, response.json()["error"]["code"]) == (504, "deadline_exceeded")
        assert await metric(gateway, "proxima_deadlines_expired_total", deadline="queue") == 1


async def test_the_shortest_total_counts_and_a_key_has_its_own(keys_file):
    auth = keys_file(a={"request_timeout_s": 0})
    async with fake_gateway(auth=auth, deadlines={"request_timeout_s": 0.05}) as gateway:
        await gateway.ready()
        hints = await told(gateway, {**BODY, "timeout": 9}, {**bearer("a"), "x-request-timeout-ms": "7000"})
        assert hints["proxima_deadline_s"] == pytest.approx(7, abs=0.5)
        assert "proxima_deadline_s" not in await told(gateway, BODY, bearer("a"))


@pytest.mark.parametrize(
    ("headers", "fields", "param"),
    [
        pytest.param({"x-request-timeout-ms": "soon"}, {}, "x-request-timeout-ms", id="word"),
        pytest.param({"x-request-timeout-ms": "0"}, {}, "x-request-timeout-ms", id="zero"),
        pytest.param({"x-request-timeout-ms": "9" * 30}, {}, "x-request-timeout-ms", id="huge"),
        pytest.param({"x-request-timeout-ms": "0" * 19 + "9" * 5000}, {}, "x-request-timeout-ms", id="zeros_first"),
        pytest.param({}, {"timeout": 0}, "timeout", id="zero_in_the_body"),
        pytest.param({}, {"timeout": "5"}, "timeout", id="text_in_the_body"),
        pytest.param({}, {"timeout": True}, "timeout", id="true_in_the_body"),
    ],
)
async def test_a_bad_timeout_is_refused(headers, fields, param):
    async with fake_gateway() as gateway:
        await gateway.ready()
        refused = await gateway.client.post(COMPLETIONS, json={**BODY, **fields}, headers=headers)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


async def test_the_old_endpoint_takes_a_timeout_too():
    async with fake_gateway() as gateway:
        await gateway.ready()
        gateway.serving.hold.clear()
        response = await gateway.client.post("/generate", json={"prompt": "Hi", "timeout": 0.05})
    assert (response.status_code, response.json()["error"]["code"]) == (504, "deadline_exceeded")


async def test_a_slow_reader_does_not_keep_the_engine_busy_past_the_deadline():
    async with fake_gateway(deadlines={"request_timeout_s": 0.3}) as gateway:
        await gateway.ready()
        gateway.serving.events = ['data: {"choices": [{"text": "%s"}]}\n\n' % ("x" * 65536)] * 1000
        async with gateway.client.stream("POST", COMPLETIONS, json={**BODY, "stream": True}) as response:
            chunks = response.aiter_raw()
            await anext(chunks)
            await asyncio.wait_for(gateway.serving.ended.wait(), 5)


# -- forecast ------------------------------------------------------------------------------------------------------


async def test_who_cannot_be_on_time_is_refused_at_once_and_the_others_are_not():
    """Sixteen answers teach the door how fast the engine is; then more wait than a deadline of half a second allows."""
    async with fake_gateway() as gateway:
        await gateway.ready()
        latest = gateway.runtime.snapshot_receiver.latest
        latest[0] = snapshot(running=0, waiting={"blocks": {"default": 9}}, estimated_start_s={"default": 50.0})
        gateway.serving.pause_s = 0.05
        for _ in range(16):
            await gateway.client.post(COMPLETIONS, json=BODY)
        gateway.serving.pause_s = 0.0
        gateway.serving.hold.clear()
        async with asyncio.TaskGroup() as group:
            waiting = [group.create_task(gateway.client.post(COMPLETIONS, json=BODY)) for _ in range(60)]
            while len(gateway.serving.bodies) < 76:
                await asyncio.sleep(0)
            refused = await gateway.client.post(COMPLETIONS, json={**BODY, "timeout": 0.5})
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
            assert "past its deadline of 0.5 s" in refused.json()["error"]["message"]
            assert refused.headers["x-should-retry"] == "true"
            patient = group.create_task(gateway.client.post(COMPLETIONS, json={**BODY, "timeout": 60}))
            while len(gateway.serving.bodies) < 77:
                await asyncio.sleep(0)
            gateway.serving.hold.set()
        assert {task.result().status_code for task in [*waiting, patient]} == {200}
        assert await metric(gateway, "proxima_rejections_total", reason="forecast") == 1


async def test_whose_answer_cannot_be_complete_in_time_is_refused_at_once_and_the_others_are_not():
    """Three are computed, a token of each takes 0.1 s: 100 tokens take ten seconds, for whoever comes next."""
    async with fake_gateway() as gateway:
        await gateway.ready()
        gateway.runtime.snapshot_receiver.latest[0] = snapshot(running=3, waiting={}, step_s=0.1)
        endless = {**BODY, "max_tokens": 100, "ignore_eos": True}
        # Who comes alone is never refused: the engine may have become faster.
        assert (await gateway.client.post(COMPLETIONS, json={**endless, "timeout": 5})).status_code == 200
        gateway.serving.hold.clear()
        async with asyncio.TaskGroup() as group:
            others = [group.create_task(gateway.client.post(COMPLETIONS, json=BODY)) for _ in range(3)]
            while len(gateway.serving.bodies) < 4:
                await asyncio.sleep(0)
            refused = await gateway.client.post(COMPLETIONS, json={**endless, "timeout": 5})
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
            assert "complete in about 10.0 s at the earliest" in refused.json()["error"]["message"]
            assert 0 < int(refused.headers["retry-after-ms"]) <= 120_000
            for fields in ({"timeout": 60}, {"timeout": 5, "max_tokens": 10}, {"timeout": 5, "ignore_eos": False}, {}):
                body = {**endless, **fields}
                others.append(group.create_task(gateway.client.post(COMPLETIONS, json=body)))
            while len(gateway.serving.bodies) < 8:
                await asyncio.sleep(0)
            gateway.serving.hold.set()
        assert {task.result().status_code for task in others} == {200}
        assert await metric(gateway, "proxima_rejections_total", reason="forecast") == 1


async def test_an_operator_may_want_everybody_let_in():
    async with fake_gateway(door={"refuse_early": False}) as gateway:
        await gateway.ready()
        gateway.runtime.snapshot_receiver.latest[0] = snapshot(running=3, waiting={}, step_s=0.1)
        gateway.serving.hold.clear()
        async with asyncio.TaskGroup() as group:
            other = group.create_task(gateway.client.post(COMPLETIONS, json=BODY))
            while not gateway.serving.bodies:
                await asyncio.sleep(0)
            hopeless = {**BODY, "max_tokens": 100, "ignore_eos": True, "timeout": 0.3}
            late = await gateway.client.post(COMPLETIONS, json=hopeless)
            assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline_exceeded")
            gateway.serving.hold.set()
        assert other.result().status_code == 200


# -- turns ---------------------------------------------------------------------------------------------------------


async def test_keys_take_turns_while_the_engine_is_full(keys_file):
    """One key floods; the other's few requests do not wait behind all of them."""
    auth = keys_file(flood={}, small={})
    async with fake_gateway(auth=auth, door={"engine_backlog": 2}) as gateway:
        await gateway.ready()
        gateway.serving.hold.clear()
        order = []

        async def ask(name: str) -> None:
            assert (
                await gateway.client.post(COMPLETIONS, json={**BODY, "max_tokens": 8}, headers=bearer(name))
            ).is_success
            order.append(name)

        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(ask("flood"))
            while await metric(gateway, "proxima_door_waiting_requests", **{"class": "default"}) < 18:
                pass
            for _ in range(3):
                group.create_task(ask("small"))
            while await metric(gateway, "proxima_door_waiting_requests", **{"class": "default"}) < 21:
                pass
            assert len(gateway.serving.bodies) == 2
            assert await metric(gateway, "proxima_door_waiting_prompt_tokens", **{"class": "default"}) >= 21
            assert await metric(gateway, "proxima_door_oldest_wait_seconds", **{"class": "default"}) > 0
            gateway.serving.hold.set()
        assert len(order) == 23
        assert [number for number, name in enumerate(order) if name == "small"][-1] < 12


async def test_without_keys_the_scheduler_sees_everybody():
    async with fake_gateway(door={"engine_backlog": 1}) as gateway:
        await gateway.ready()
        gateway.serving.hold.clear()
        async with asyncio.TaskGroup() as group:
            for _ in range(10):
                group.create_task(gateway.client.post(COMPLETIONS, json=BODY))
            while len(gateway.serving.bodies) < 10:
                await asyncio.sleep(0)
            gateway.serving.hold.set()


async def test_who_gives_up_at_the_door_never_reaches_the_engine(keys_file):
    async with fake_gateway(auth=keys_file(a={}), door={"engine_backlog": 1}) as gateway:
        await gateway.ready()
        gateway.serving.hold.clear()
        first = asyncio.create_task(gateway.client.post(COMPLETIONS, json=BODY, headers=bearer("a")))
        await gateway.serving.started.wait()
        for stream in (False, True):
            waiting = asyncio.create_task(
                gateway.client.post(COMPLETIONS, json={**BODY, "stream": stream}, headers=bearer("a"))
            )
            while await metric(gateway, "proxima_door_waiting_requests", **{"class": "default"}) < 1:
                pass
            waiting.cancel()
            async with asyncio.timeout(5):
                while await metric(gateway, "proxima_door_waiting_requests", **{"class": "default"}) > 0:
                    pass
        gateway.serving.hold.set()
        assert (await first).status_code == 200
        assert len(gateway.serving.bodies) == 1


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_deadline_at_the_door_is_told(keys_file, stream):
    async with fake_gateway(auth=keys_file(a={}), door={"engine_backlog": 1}) as gateway:
        await gateway.ready()
        gateway.serving.hold.clear()
        first = asyncio.create_task(gateway.client.post(COMPLETIONS, json=BODY, headers=bearer("a")))
        await gateway.serving.started.wait()
        late = await gateway.client.post(
            COMPLETIONS, json={**BODY, "stream": stream, "timeout": 0.1}, headers=bearer("a")
        )
        assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline_exceeded")
        gateway.serving.hold.set()
        assert (await first).status_code == 200
        assert len(gateway.serving.bodies) == 1


async def test_a_stream_waits_for_its_turn_and_is_whole(keys_file):
    async with fake_gateway(auth=keys_file(a={}), door={"engine_backlog": 1}) as gateway:
        await gateway.ready()
        gateway.serving.hold.clear()
        first = asyncio.create_task(gateway.client.post(COMPLETIONS, json=BODY, headers=bearer("a")))
        await gateway.serving.started.wait()
        reading = asyncio.create_task(
            gateway.client.post(COMPLETIONS, json={**BODY, "stream": True}, headers=bearer("a"))
        )
        while await metric(gateway, "proxima_door_waiting_requests", **{"class": "default"}) < 1:
            pass
        gateway.serving.hold.set()
        assert (await first).status_code == 200
        assert (await reading).text == "".join(gateway.serving.events)
