"""When an engine counts as hung."""

from __future__ import annotations

import asyncio

import pytest
from fake_engine import FakeBuild
from hypothesis import given
from hypothesis import strategies as st

from proxima_config.layering import load_settings
from proxima_engine import heartbeat
from proxima_engine.heartbeat import StallClock
from proxima_engine.runtime import EnginePhase, EngineRuntime


def run(ticks) -> float:
    clock = StallClock(tick_s=1.0)
    for now_s, unfinished, progress in ticks:
        clock.tick(now_s, unfinished=unfinished, progress=progress)
    return clock.stalled_s


def test_work_without_progress_adds_up():
    assert run([(0, 1, 7), (1, 1, 7), (2, 1, 7), (3, 2, 7)]) == 3


def test_one_step_ends_a_stall():
    assert run([(0, 1, 7), (1, 1, 7), (2, 1, 8)]) == 0


def test_an_idle_engine_never_stalls():
    assert run([(second, 0, 7) for second in range(1000)]) == 0


def test_time_for_which_this_process_stood_still_is_not_held_against_the_engine():
    assert run([(0, 1, 7), (1000, 1, 7)]) == 2


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 3), st.integers(0, 2)), max_size=50))
def test_a_stall_is_never_longer_than_the_time_since_the_last_progress(moves):
    clock, now_s, progress, since_s = StallClock(tick_s=1.0), 0.0, 0, 0.0
    for gap_s, unfinished, steps in moves:
        now_s, progress = now_s + gap_s, progress + steps
        clock.tick(now_s, unfinished=unfinished, progress=progress)
        if steps or not unfinished:
            since_s = now_s
        assert clock.stalled_s <= now_s - since_s + 1e-9


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr(heartbeat, "TICK_S", 0.01)


def settings(**environ):
    return load_settings(environ={"PROXIMA__LIFECYCLE__HANG_S": "0.05", **environ})


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


async def test_an_engine_with_work_that_reports_nothing_hangs_until_it_does(fast):
    build = FakeBuild("ready")
    engine = EngineRuntime(settings(), build=build)
    engine.start()
    assert await engine.wait() is EnginePhase.READY
    assert engine.hang is None
    engine.client.unfinished = 3
    await until(lambda: engine.hang is not None)
    assert "has 3 requests" in engine.hang
    await engine.client.report()
    await until(lambda: engine.hang is None)
    await engine.stop()


async def test_a_rank_that_hangs_is_not_hidden_by_one_that_works(fast):
    engine = EngineRuntime(settings(), build=FakeBuild("ready"))
    engine.start()
    await engine.wait()
    engine.client.serve_on_ranks({"a": 0, "b": 1, "c": 1})

    async def work_on(rank: int) -> None:
        while True:
            await engine.client.report(rank)
            await asyncio.sleep(0)

    working = asyncio.create_task(work_on(0))
    await until(lambda: engine.hang is not None)
    assert engine.hang.startswith("rank 1 of the engine hangs: it has 2 requests")
    await engine.client.report(1)
    await until(lambda: engine.hang is None)
    # Its requests have been given up: without work there is nothing to report.
    engine.client.output_processor.request_states.clear()
    await asyncio.sleep(0.1)
    assert engine.hang is None
    working.cancel()
    await engine.stop()


async def test_ending_a_hung_engine_names_the_hang_as_the_cause(fast):
    engine = EngineRuntime(settings(), build=FakeBuild("ready"))
    engine.start()
    await engine.wait()
    await engine.kill("the engine hangs")
    await engine.failed.wait()
    assert engine.failure == "the engine hangs"
    await engine.stop()


async def test_zero_never_calls_it_a_hang(fast):
    engine = EngineRuntime(settings(PROXIMA__LIFECYCLE__HANG_S="0"), build=FakeBuild("ready"))
    engine.start()
    await engine.wait()
    engine.client.unfinished = 1
    await until(lambda: engine.heartbeat.stalled_s > 0.1)
    assert engine.hang is None
    await engine.stop()
