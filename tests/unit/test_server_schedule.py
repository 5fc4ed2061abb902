"""`/debug/schedule`: why each request waits, and the decisions as JSON and as a trace."""

from __future__ import annotations

import pytest
from fake_gateway import fake_gateway, snapshot
from request_rows import decision, state

from proxima_engine.policy.plan import Reason
from proxima_engine.telemetry import REQUESTS_NAMED, Phase
from proxima_server.live.explain import MEANING
from proxima_server.live.trace import chrome_trace

HISTORY = [
    decision(10.0, started=["a"], held={"b": "forecast"}, head_start_s=2.0, waiting=1),
    decision(11.0, held={"b": "blocks"}, waiting=1),
    decision(12.0, started=["b"], ended=["a"]),
    decision(13.0, yielded={"b": "recompute"}, running=0, waiting=1),
]


def test_every_reason_is_explained():
    assert set(MEANING) == set(Reason)


async def test_each_request_is_told_with_its_reason_and_its_start():
    async with fake_gateway() as gateway:
        receiver = gateway.runtime.snapshot_receiver
        receiver.requests[0] = [
            state("a", Phase.DECODE, blocks=7, output_tokens=3),
            state("b", Phase.BLOCKED, "forecast", start_s=2.0),
        ]
        receiver.decisions.extend((0, each) for each in HISTORY)
        answer = (await gateway.client.get("/debug/schedule", params={"decisions": 2})).json()
    (waiting,), (running,) = answer["waiting"], answer["running"]
    assert (waiting["id"], waiting["reason"], waiting["estimated_start_s"]) == ("b", "forecast", 2.0)
    assert "forecast peak" in waiting["because"]
    assert (running["id"], running["blocks"], running["output_tokens"]) == ("a", 7, 3)
    assert [each["time_s"] for each in answer["decisions"]] == [12.0, 13.0]


async def test_rows_are_bounded_and_the_others_are_counted():
    async with fake_gateway() as gateway:
        receiver = gateway.runtime.snapshot_receiver
        waiting = [state(f"w{number}", Phase.WAITING, "behind_head") for number in range(REQUESTS_NAMED)]
        running = [state(f"r{number}", Phase.DECODE) for number in range(300)]
        # The scheduler names only so many of those who wait; of those who run, one has come since.
        receiver.latest = {0: snapshot(running=301, waiting={"behind_head": {"default": REQUESTS_NAMED + 25}})}
        receiver.requests[0] = running + waiting

        async def ask(**query):
            return (await gateway.client.get("/debug/schedule", params=query)).json()

        usual, all_of_them, counts = await ask(), await ask(requests=10_000), await ask(requests=0)
    assert (len(usual["waiting"]), usual["waiting_left_out"]) == (200, 325)
    assert (len(usual["running"]), usual["running_left_out"]) == (200, 100)
    assert usual["waiting"][0]["id"] == "w0", "those who start first are shown"
    assert (len(all_of_them["waiting"]), all_of_them["waiting_left_out"]) == (REQUESTS_NAMED, 25)
    assert (len(all_of_them["running"]), all_of_them["running_left_out"]) == (300, 0)
    assert (counts["waiting"], counts["waiting_left_out"], counts["running_left_out"]) == ([], 525, 300)


@pytest.mark.parametrize(
    "query", ["decisions=-1", "decisions=1001", "decisions=x", "format=csv", "requests=-1", "requests=10001"]
)
async def test_a_wrong_question_is_refused(query):
    async with fake_gateway() as gateway:
        response = await gateway.client.get(f"/debug/schedule?{query}")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == query.partition("=")[0]


async def test_the_native_scheduler_says_nothing():
    async with fake_gateway(scheduler={"kind": "native"}) as gateway:
        answer = (await gateway.client.get("/debug/schedule")).json()
        trace = (await gateway.client.get("/debug/schedule?format=chrome")).json()
    assert answer["scheduler"] == "native"
    assert answer["waiting"] == answer["running"] == answer["decisions"] == trace["traceEvents"] == []


def test_a_trace_has_a_slice_for_each_thing_that_a_request_did():
    events = chrome_trace((0, each) for each in HISTORY)["traceEvents"]
    slices = [(each["ph"], each["id"], each["name"], each["ts"]) for each in events if each["ph"] in "be"]
    assert slices == [
        ("b", "a", "runs", 10e6),
        ("b", "b", "waits: forecast", 10e6),
        ("e", "b", "waits: forecast", 11e6),
        ("b", "b", "waits: blocks", 11e6),
        ("e", "a", "runs", 12e6),
        ("e", "b", "waits: blocks", 12e6),
        ("b", "b", "runs", 12e6),
        ("e", "b", "runs", 13e6),
        ("b", "b", "yielded: recompute", 13e6),
        ("e", "b", "yielded: recompute", 13e6),
    ]
    counted = [each["args"] for each in events if each["ph"] == "C" and each["name"] == "requests"]
    assert counted[-1] == {"running": 0, "waiting": 1}
    assert sum(each["ph"] == "X" for each in events) == len(HISTORY)


def test_ranks_are_processes_of_their_own():
    events = chrome_trace([(0, HISTORY[0]), (1, HISTORY[0])])["traceEvents"]
    assert {each["pid"] for each in events if each["ph"] == "b"} == {0, 1}
