"""Every arm on vLLM's real scheduler and KV-cache manager: all requests end with their own text, no block is lost."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stepping_engine import SteppingEngine, engine_config
from vllm.config import VllmConfig

from proxima_config.errors import UsageError
from proxima_engine.lab.arms import ARMS, ArmContext, arm
from proxima_engine.policy.plan import Plan
from proxima_engine.policy.view import StepView

BLOCKS = 24
CAP = 400
Queue = list[tuple[int, int]]
"""(prompt tokens, answer tokens) of each request."""
Start = Callable[[str, bool, Queue], SteppingEngine]

QUEUES = {
    "giant_head": [(40, 90), (32 * 22, 30), *[(40, 60)] * 6],
    "same_length_wave": [(64, 100)] * 10,
    "far_cap": [(33, 3)] * 12,
    "growing_past_the_pool": [(16, 300)] * 5,
    "just_fits_alone": [(32 * 23, 16), (32 * 12, 16), (32 * 23, 32)],
}
MODES = pytest.mark.parametrize("overlap", [False, True], ids=["sync", "async"])
EVERY_ARM = pytest.mark.parametrize("name", list(ARMS))


@pytest.fixture(scope="module")
def start() -> Start:
    @cache
    def config(overlap: bool, watermark: float) -> VllmConfig:
        limits = {"max_model_len": 32 * BLOCKS, "max_num_batched_tokens": 256, "max_num_seqs": 16}
        return engine_config(overlap=overlap, watermark=watermark, **limits)

    def start(name: str, overlap: bool, queue: Queue) -> SteppingEngine:
        lengths = {f"r{number}": answer for number, (_, answer) in enumerate(queue)}
        context = ArmContext(ttft_s=1.0, stall_s=0.2, max_wait_s=10.0, true_lengths=lengths, seed=7)
        return SteppingEngine(config(overlap, arm(name).watermark), BLOCKS, make_scheduler=arm(name).make(context))

    return start


def add(engine: SteppingEngine, queue: Queue, number: int) -> None:
    prompt, answer = queue[number]
    engine.add(f"r{number}", prompt, min(CAP, 32 * BLOCKS - prompt), answer_tokens=answer)


def assert_all_end_whole(engine: SteppingEngine, queue: Queue) -> None:
    engine.drain(max_steps=4000)
    engine.check_integrity()
    for number, (_, answer) in enumerate(queue):
        assert engine.texts[f"r{number}"] == engine.expected_text(f"r{number}", answer)
        assert engine.ended[f"r{number}"] == ("length" if answer >= CAP else "stop")


@MODES
@EVERY_ARM
@pytest.mark.parametrize("kind", list(QUEUES))
def test_adversarial_queues_end_whole(start: Start, name: str, overlap: bool, kind: str) -> None:
    queue = QUEUES[kind]
    engine = start(name, overlap, queue)
    for number in range(len(queue)):
        add(engine, queue, number)
    assert_all_end_whole(engine, queue)


sizes = st.tuples(st.integers(1, 32 * 20), st.integers(1, 100))
arrivals = st.lists(st.tuples(sizes, st.integers(0, 8)), min_size=2, max_size=14)


@MODES
@EVERY_ARM
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arrivals=arrivals)
def test_whatever_arrives_ends_whole(
    start: Start, name: str, overlap: bool, arrivals: list[tuple[tuple[int, int], int]]
) -> None:
    queue = [size for size, _ in arrivals]
    engine = start(name, overlap, queue)
    for number, (_, steps) in enumerate(arrivals):
        add(engine, queue, number)
        for _ in range(steps):
            engine.step()
    assert_all_end_whole(engine, queue)


def wave(engine: SteppingEngine, queue: Queue) -> None:
    for number in range(len(queue)):
        add(engine, queue, number)


@MODES
@pytest.mark.parametrize("name", ["gang", "sglang-ratio", "past-future"])
def test_those_who_choose_victims_leave_none_to_vllm(start: Start, name: str, overlap: bool) -> None:
    queue = [(40, 300), *[(16 + 3 * number, 90 + number) for number in range(16)]]
    engine = start(name, overlap, queue)
    wave(engine, queue)
    assert_all_end_whole(engine, queue)
    snapshot = engine.scheduler._report.snapshot()
    assert snapshot.preemptions_total == snapshot.yields_total.get("recompute", 0)


def test_gang_computes_for_all_or_for_nobody(start: Start) -> None:
    queue = QUEUES["growing_past_the_pool"]
    engine = start("gang", True, queue)
    wave(engine, queue)
    idle_steps = 0
    while engine.scheduler.has_unfinished_requests():
        output = engine.step()
        computing, present = set(output.num_scheduled_tokens), {each.request_id for each in engine.scheduler.running}
        idle_steps += bool(present) and not computing
        assert not computing or present <= computing | set(engine.ended)
    assert_all_end_whole(engine, queue)
    assert idle_steps > 0
    assert engine.scheduler._report.snapshot().yields_total["recompute"] > 0


@pytest.mark.parametrize("name", ["past-future-oracle"])
@MODES
def test_known_lengths_need_no_victims(start: Start, name: str, overlap: bool) -> None:
    queue = QUEUES["growing_past_the_pool"]
    engine = start(name, overlap, queue)
    wave(engine, queue)
    assert_all_end_whole(engine, queue)
    assert engine.scheduler._report.snapshot().preemptions_total == 0


def test_past_future_learns_from_what_ended_and_not_from_what_was_aborted(start: Start) -> None:
    queue = [(16, 5)] * 40
    engine = start("past-future", False, queue)
    seen: list[int] = []
    engine.scheduler.proxima_policy.finished = lambda request: seen.append(request.output_tokens)
    wave(engine, queue)
    engine.step()
    engine.abort("r0")
    for _ in range(8):
        engine.step()
    assert seen
    assert set(seen) == {5}


def test_an_error_of_a_policy_is_not_covered_up(start: Start) -> None:
    engine = start("hrrn", False, [(16, 5)])

    def broken(view: StepView) -> Plan:
        raise ZeroDivisionError(view.now_s)

    engine.scheduler.proxima_policy.plan = broken
    add(engine, [(16, 5)], 0)
    with pytest.raises(ZeroDivisionError):
        engine.step()


def test_what_cheats_says_so() -> None:
    assert {name for name, each in ARMS.items() if each.cheats} == {"past-future-oracle", "sjf-oracle"}
    assert all(each.about and each.source for each in ARMS.values())


def test_an_unknown_arm_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean past-future"):
        arm("past_future")
