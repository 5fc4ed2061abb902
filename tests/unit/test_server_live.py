"""`/debug/live`: what it says about requests, pool, door and drain, to whom, and at what price."""

from __future__ import annotations

import asyncio
import json
import time

import httpx
import msgspec
import pytest
from fake_gateway import fake_gateway, snapshot
from request_rows import state
from virtual_time import run

from proxima_engine.telemetry import Phase
from proxima_server.live import state as state_module
from proxima_server.live.feed import Feed
from proxima_server.live.latency import SAMPLE_S, RecentLatency, quantile
from proxima_server.live.requests import external_id
from proxima_server.metrics.request_metrics import RequestMetrics

BODY = {"prompt": "the secret prompt", "stream": True, "model": "fake"}
SSE = {"accept": "text/event-stream"}


async def live(gateway) -> dict:
    # A new tick each time: what a test has just changed must show.
    gateway.feed._tick = -1
    return (await gateway.client.get("/debug/live")).json()


async def one_that_waits(gateway) -> asyncio.Task:
    """Sent, and without a first token until `gateway.serving.wait_first` is set."""
    await gateway.ready()
    gateway.serving.wait_first.clear()
    asking = asyncio.create_task(gateway.client.post("/v1/completions", json=BODY))
    while not gateway.serving.bodies:
        await asyncio.sleep(0)
    return asking


async def events(response: httpx.Response):
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


async def test_a_gateway_that_still_loads_says_so():
    async with fake_gateway() as gateway:
        document = await live(gateway)
    assert document["version"] == 1
    assert document["gateway"]["phase"] == "starting"
    assert not document["gateway"]["ready"]
    assert document["requests"] == document["ranks"] == []
    assert document["latency"]["ttft_s"] == {"p50": None, "p95": None, "p99": None, "count": 0}


async def test_the_pool_is_that_of_the_newest_snapshots():
    async with fake_gateway() as gateway:
        await gateway.ready()
        gateway.runtime.snapshot_receiver.latest = {0: snapshot(), 1: snapshot(rank=1, running=1)}
        document = await live(gateway)
    assert [(rank["blocks_total"], rank["blocks_used"], rank["blocks_peak"]) for rank in document["ranks"]] == [
        (191, 100, 120)
    ] * 2
    engine = document["engine"]
    assert (engine["running"], engine["waiting"], engine["output_tokens_per_s"]) == (4, {"blocks": 4}, 100.0)
    assert engine["yields_total"] == {"recompute": 2}


async def test_host_memory_is_shown_where_there_is_some():
    async with fake_gateway() as gateway:
        await gateway.ready()
        receiver = gateway.runtime.snapshot_receiver
        receiver.latest = {0: snapshot()}
        assert (await live(gateway))["swap"] is None
        host = snapshot(
            host_blocks_total=400,
            host_blocks_used=30,
            swapped_blocks_total={"out": 70, "in": 40},
            swapped_bytes_total={"out": 7_000_000, "in": 4_000_000},
            recompute_tokens_avoided_total=1200,
            swap_failures_total={"no_room": 2, "copy": 0},
        )
        receiver.latest = {0: host, 1: msgspec.structs.replace(host, rank=1)}
        receiver.requests = {0: [state("a", Phase.SWAPPED, "blocks"), state("b", Phase.YIELDED, "blocks")], 1: []}
        document = await live(gateway)
    assert document["swap"] == {
        "requests": 1,
        "host_blocks_total": 800,
        "host_blocks_used": 60,
        "blocks_total": {"out": 140, "in": 80},
        "bytes_total": {"out": 14_000_000, "in": 8_000_000},
        "recompute_tokens_avoided_total": 2400,
        "failures_total": {"no_room": 4, "copy": 0},
    }
    assert [(rank["host_blocks_total"], rank["host_blocks_used"]) for rank in document["ranks"]] == [(400, 30)] * 2


async def test_a_request_of_which_only_the_scheduler_has_seen_tokens_is_not_late():
    async with fake_gateway(scheduler={"ttft_s": 30}) as gateway:
        asking = await one_that_waits(gateway)
        held = state(f"{gateway.serving.engine_ids[0]}-0123abcd", Phase.DECODE, output_tokens=5)
        gateway.runtime.snapshot_receiver.requests[0] = [held]
        (row,) = (await live(gateway))["requests"]
        gateway.serving.wait_first.set()
        await asking
    assert (row["output_tokens"], row["slack_s"]) == (5, None)


@pytest.mark.parametrize(
    ("phase", "reason", "start_s"),
    [
        pytest.param(Phase.WAITING, "behind_head", 9.0, id="waiting"),
        pytest.param(Phase.BLOCKED, "forecast", 4.0, id="blocked"),
        pytest.param(Phase.PREFILL, "", None, id="prefill"),
        pytest.param(Phase.YIELDED, "blocks", None, id="yielded"),
        pytest.param(Phase.SWAPPED, "blocks", None, id="swapped"),
    ],
)
async def test_a_request_is_where_the_scheduler_says(phase, reason, start_s):
    async with fake_gateway(scheduler={"ttft_s": 30}) as gateway:
        asking = await one_that_waits(gateway)
        engine_id = f"{gateway.serving.engine_ids[0]}-0123abcd"
        gateway.runtime.snapshot_receiver.requests[3] = [state(engine_id, phase, reason, start_s=start_s, blocks=7)]
        response = await gateway.client.get("/debug/live")
        gateway.serving.wait_first.set()
        await asking
        after = await live(gateway)
    (row,) = response.json()["requests"]
    assert row["phase"] == phase.value
    assert (row["reason"], row["start_s"], row["blocks"]) == (reason or None, start_s, 7)
    assert row["blocks_by_rank"] == {"3": 7}
    assert 29 < row["slack_s"] <= 30
    assert row["class"] == "default"
    assert "secret" not in response.text
    assert after["requests"] == []


async def test_a_request_of_several_answers_is_one_row():
    assert external_id("cmpl-ab-c-0123abcd") == "cmpl-ab-c"
    assert external_id("3_cmpl-ab_c-0123abcd") == "cmpl-ab_c"
    assert external_id("x_cmpl-ab-0123abcd") == "x_cmpl-ab"


async def test_without_a_telling_scheduler_rows_say_what_the_gateway_knows():
    async with fake_gateway(scheduler={"kind": "native"}) as gateway:
        gateway.serving.hold.clear()
        asking = await one_that_waits(gateway)
        before = await live(gateway)
        gateway.serving.wait_first.set()
        await gateway.serving.started.wait()
        during = await live(gateway)
        gateway.serving.hold.set()
        await asking
        gateway.runtime.snapshot_receiver.latest = {0: snapshot()}
        telling = await live(gateway)
    # Not told is not zero.
    for document in (before, during):
        told = {name: value for name, value in document["engine"].items() if name != "output_tokens_per_s"}
        assert set(told.values()) == {None}
        assert set(told) == set(telling["engine"]) - {"output_tokens_per_s"}
    assert before["engine"]["output_tokens_per_s"] is None
    assert during["engine"]["output_tokens_per_s"] > 0
    assert [row["phase"] for row in before["requests"]] == ["engine"]
    (row,) = during["requests"]
    assert (row["phase"], row["output_tokens"], row["slack_s"]) == ("decode", 1, None)


async def test_latencies_are_those_of_the_last_minute():
    async with fake_gateway() as gateway:
        await gateway.ready()
        await live(gateway)
        gateway.gateway.request_metrics.of_class("default").ttft.observe(0.3)
        gateway.gateway.request_metrics.of_class("flex").ttft.observe(0.3)
        document = await live(gateway)
    assert document["latency"]["ttft_s"]["count"] == 2
    assert 0.2 < document["latency"]["ttft_s"]["p50"] <= 0.5
    assert document["latency"]["itl_s"]["p95"] is None


def test_the_first_who_looks_sees_the_last_minute_and_not_all_time():
    metrics = RequestMetrics()
    recent = RecentLatency(metrics, 0.0)
    metrics.of_class("default").ttft.observe(30.0)
    assert recent.report(5.0)["window_s"] == 5.0
    for tick in range(1, 60):
        recent.remember(tick * SAMPLE_S)
    metrics.of_class("flex").ttft.observe(0.3)
    report = recent.report(595.0)
    assert report["window_s"] == 65.0
    assert report["ttft_s"]["count"] == 1
    assert report["ttft_s"]["p99"] < 1
    # A window without requests has no percentiles, whatever came before it.
    for tick in range(60, 70):
        recent.remember(tick * SAMPLE_S)
    assert recent.report(695.0)["ttft_s"] == {"p50": None, "p95": None, "p99": None, "count": 0}


async def test_latencies_are_remembered_while_nobody_looks(monkeypatch):
    remembered = asyncio.Event()
    monkeypatch.setattr(state_module, "SAMPLE_S", 0.01)
    async with fake_gateway():
        monkeypatch.setattr(RecentLatency, "remember", lambda *_: remembered.set())
        await asyncio.wait_for(remembered.wait(), 30)


@pytest.mark.parametrize(
    ("counts", "share", "value"),
    [
        pytest.param([0, 0, 0], 0.5, None, id="nothing"),
        pytest.param([10, 0, 0], 0.5, 0.5, id="middle_of_the_first"),
        pytest.param([5, 5, 0], 0.75, 1.5, id="middle_of_the_second"),
        pytest.param([0, 0, 3], 0.5, 2.0, id="beyond_the_last_bound"),
    ],
)
def test_a_quantile_is_linear_within_its_bucket(counts, share, value):
    assert quantile([1.0, 2.0], counts, share) == value


def test_ten_viewers_cost_one_document_a_second_and_nobody_costs_none():
    built = []

    def build() -> bytes:
        built.append(asyncio.get_running_loop().time())
        return b"{}"

    async def watch() -> list[int]:
        feed, ended = Feed(build), asyncio.Event()

        async def look() -> int:
            return len([event async for event in feed.follow(ended)])

        await asyncio.sleep(10.25)
        viewers = [asyncio.create_task(look()) for _ in range(10)]
        await asyncio.sleep(3.5)
        ended.set()
        seen = await asyncio.gather(*viewers)
        await asyncio.sleep(10)
        return seen

    # At once, at each full second, and once more when all is over.
    assert run(watch()) == [5] * 10
    assert built[:4] == [10.25, 11.0, 12.0, 13.0]
    assert set(built[4:]) == {13.75}


async def test_a_stream_shows_the_drain_and_ends_with_the_process():
    async with fake_gateway() as gateway:
        await gateway.ready()
        gateway.serving.hold.clear()
        async with gateway.client.stream("POST", "/v1/completions", json=BODY) as answer:
            await gateway.serving.started.wait()
            async with gateway.client.stream("GET", "/debug/live", headers=SSE) as response:
                assert response.headers["content-type"].startswith("text/event-stream")
                seen = events(response)
                first = await anext(seen)
                gateway.stop()
                async for document in seen:
                    if document["gateway"]["draining"]:
                        break
                gateway.serving.hold.set()
                await answer.aread()
                async for _ in seen:
                    pass
    assert not first["gateway"]["draining"]
    assert document["gateway"]["drain_remaining_requests"] == 1
    assert not document["gateway"]["ready"]


@pytest.mark.parametrize("path", ["/debug/live", "/debug/schedule"])
async def test_who_may_look(path):
    async with fake_gateway(auth={"api_keys": "team=0123456789abcdefghijklmnopqrstuv"}) as gateway:
        get = gateway.client.get
        assert (await get(path)).status_code == 200
        # Our own page may; no other page, and no proxy.
        assert (await get(path, headers={"sec-fetch-site": "same-origin"})).status_code == 200
        assert (await get(path, headers={"sec-fetch-site": "same-site"})).status_code == 403
        assert (await get(path, headers={"sec-fetch-site": "same-origin", "host": "evil.example"})).status_code == 403
        assert (await get(path, headers={"x-forwarded-for": "203.0.113.9"})).status_code == 403
    async with fake_gateway(admin={"token": "s3cret"}) as gateway:
        get = gateway.client.get
        assert (await get(path, headers={"sec-fetch-site": "same-origin"})).status_code == 401
        assert (await get(path, headers={"authorization": "Bearer s3cret"})).status_code == 200


async def test_our_own_page_may_look_but_not_drain():
    async with fake_gateway() as gateway:
        response = await gateway.client.post("/admin/drain", headers={"sec-fetch-site": "same-origin"})
        assert response.status_code == 403
        assert not gateway.gateway.drain.draining


async def test_the_document_of_a_crowd_is_cut_and_says_so():
    async with fake_gateway() as gateway:
        await gateway.ready()
        gateway.serving.wait_first.clear()
        from proxima_server.observability.record import RequestRecord

        crowd = [RequestRecord(gateway.gateway.request_metrics, "POST", "/v1/completions") for _ in range(1000)]
        gateway.gateway.active_requests.update(crowd)
        document = await live(gateway)
        gateway.gateway.active_requests.clear()
    assert len(document["requests"]) == 300
    assert document["requests_left_out"] == 700
    assert document["time_s"] == pytest.approx(time.time(), abs=60)
