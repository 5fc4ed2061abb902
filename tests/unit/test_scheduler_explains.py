"""What the scheduler tells about each request: why it waits, and when it is going to start."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from types import SimpleNamespace

import pytest
from stepping_engine import STEP_S, SteppingEngine, engine_config

from proxima_engine.policy.plan import Plan, Reason
from proxima_engine.policy.start_estimate import starts_in_turn_s
from proxima_engine.scheduling.decision_log import HELD_NAMED, DecisionLog
from proxima_engine.swap.setup import transfer_config
from proxima_engine.telemetry import Phase, RequestState, SnapshotReceiver

BLOCK = 32
ANSWER = 200


def told(engine: SteppingEngine) -> dict[str, RequestState]:
    return {state.request_id: state for state in engine.scheduler._report.requests()}


def experienced(blocks: int, **options: object) -> SteppingEngine:
    """It has seen answers end after 200 of the 1000 tokens that they may have."""
    engine = SteppingEngine(engine_config(scheduler_options=options), blocks=blocks)
    for number in range(60):
        engine.add(f"past{number}", BLOCK, 1000, answer_tokens=ANSWER)
    engine.drain()
    return engine


def test_those_who_run_are_told_with_their_blocks():
    engine = SteppingEngine(engine_config(max_num_batched_tokens=128), blocks=100)
    engine.add("short", 40, 10)
    engine.add("long", 300, 10)
    engine.step()
    states = told(engine)
    assert (states["short"].phase, states["short"].blocks) == (Phase.DECODE, 2)
    assert states["long"].phase is Phase.PREFILL
    assert states["short"].reason == states["long"].reason == ""


def test_one_who_yielded_says_so():
    engine = SteppingEngine(engine_config(), blocks=12)
    for name in "ab":
        engine.add(name, BLOCK, 300)
    engine.step()
    while not (yielded := [state for state in told(engine).values() if state.phase is Phase.YIELDED]):
        engine.step()
    assert yielded[0].reason in ("blocks", "forecast")
    assert yielded[0].output_tokens > 0
    engine.drain()
    engine.check_integrity()


def test_one_whose_kv_waits_in_host_memory_says_so():
    config = engine_config()
    config.kv_transfer_config = transfer_config(config, host_bytes=1 << 20)
    engine = SteppingEngine(config, blocks=12)
    for name in "ab":
        engine.add(name, BLOCK, 300)
    while not (gave_way := [state for state in told(engine).values() if state.phase is Phase.SWAPPED]):
        assert not any(state.phase is Phase.YIELDED for state in told(engine).values())
        engine.step()
    assert gave_way[0].output_tokens > 0
    engine.drain()
    engine.check_integrity()


def test_a_request_held_back_by_its_forecast_says_why_and_when_it_starts():
    """Four answers of 200 tokens grow into a pool in which the prompt of a fifth would fit now."""
    each = BLOCK * 2
    engine = experienced(blocks=4 * 9 + 1)
    for number in range(4):
        engine.add(f"runs{number}", each, 1000, answer_tokens=ANSWER)
    for _ in range(60):
        engine.step()
    engine.add("held", each, 1000, answer_tokens=ANSWER)
    engine.step()
    state = told(engine)["held"]
    assert (state.phase, state.reason) == (Phase.BLOCKED, "forecast")
    assert engine.free_blocks > 2, "its blocks are free"
    asked_s = engine.now_s
    while "held" not in engine.started_s:
        engine.step()
    waited_s = engine.started_s["held"] - asked_s
    assert waited_s > 20 * STEP_S
    assert state.start_s == pytest.approx(waited_s, rel=0.3)
    engine.drain()


def test_a_policy_that_cannot_tell_costs_nobody_anything(caplog, monkeypatch):
    engine = experienced(blocks=4 * 9 + 1)
    for number in range(6):
        engine.add(f"r{number}", BLOCK * 2, 1000, answer_tokens=ANSWER)
    engine.step()
    with monkeypatch.context() as broken:
        broken.setattr(engine.scheduler.proxima_policy, "_seen", object())
        for _ in range(3):
            states = told(engine)
    assert len(states) == 6
    starts = [state.start_s for state in states.values() if state.reason]
    assert starts == sorted(starts), "as in order of arrival"
    assert caplog.text.count("cannot tell when requests start") == 1
    assert (engine.scheduler.proxima_guard.failures_total, engine.scheduler.proxima_guard.state) == (0, "ok")
    engine.drain()
    engine.check_integrity()


def test_estimates_follow_time_and_order():
    engine = experienced(blocks=4 * 9 + 1)
    for number in range(4):
        engine.add(f"runs{number}", BLOCK * 2, 1000, answer_tokens=ANSWER)
    engine.step()
    for number in range(3):
        engine.add(f"held{number}", BLOCK * 2, 1000, answer_tokens=ANSWER)
    engine.step()
    starts = [state.start_s for state in told(engine).values() if state.reason]
    assert len(starts) == 3
    assert starts == sorted(starts)
    for _ in range(5):
        engine.step()
    later = [state.start_s for state in told(engine).values() if state.reason]
    assert later[0] < starts[0]


@pytest.mark.parametrize(
    ("first_s", "work", "work_per_s", "starts"),
    [
        pytest.param(None, [8.0, 6.0], 2.0, [None, None], id="nothing_known"),
        pytest.param(4.0, [8.0, 6.0], 0.0, [4.0, None], id="nothing_done_yet"),
        pytest.param(4.0, [8.0, 6.0, 2.0], 2.0, [4.0, 8.0, 11.0], id="work_of_those_before"),
        pytest.param(4.0, [8.0], 2.0, [4.0], id="alone"),
        pytest.param(4.0, [], 2.0, [], id="nobody"),
        pytest.param(None, [], 0.0, [], id="nobody_and_nothing_known"),
    ],
)
def test_only_what_is_known_is_estimated(first_s, work, work_per_s, starts):
    assert starts_in_turn_s(first_s, work, work_per_s) == starts


async def test_the_gateway_sees_requests_and_decisions(tmp_path: Path):
    endpoint = f"ipc://{tmp_path}/snapshots"
    receiver = SnapshotReceiver(endpoint)
    task = asyncio.create_task(receiver.run())
    options = {"snapshot_endpoint": endpoint, "snapshot_interval_s": 0.1}
    engine = SteppingEngine(engine_config(scheduler_options=options), blocks=6)
    engine.add("a", BLOCK * 4, 20)
    engine.step()
    engine.add("b", BLOCK * 4, 20)
    engine.drain()
    async with asyncio.timeout(10):
        while not receiver.decisions or receiver.decisions[-1][1].ended != ["b"] or receiver.requests.get(0) != []:
            await asyncio.sleep(0.01)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    engine.scheduler.shutdown()
    decisions = [decision for _, decision in receiver.decisions]
    assert [decision.started for decision in decisions if decision.started] == [["a"], ["b"]]
    held = [decision for decision in decisions if decision.held]
    assert held[0].held == {"b": "blocks"}
    assert [decision.ended for decision in decisions if decision.ended] == [["a"], ["b"]]
    assert len(decisions) == 4, "steps that decide nothing new are no decisions"


def test_a_decision_names_no_more_than_the_first_who_are_held() -> None:
    """Thousands may wait, and a thousand decisions are kept."""
    scheduler = SimpleNamespace(get_request_counts=lambda: (1, 5000))
    log = DecisionLog(scheduler)
    held = {f"r{number}": Reason.LORA for number in range(5000)}
    output = SimpleNamespace(
        scheduled_new_reqs=[], scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set()), preempted_req_ids=None
    )
    log.dispatched(1, Plan(order=(), held=held), output, blocks_used=7, took_s=0.001)
    (decision,) = log.take()
    assert list(decision.held) == [f"r{number}" for number in range(HELD_NAMED)]
    assert decision.waiting == 5000
