"""ProximaScheduler over vLLM's real KV-cache manager, stepped by hand with a clock of our own."""

from __future__ import annotations

import math
import pkgutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stepping_engine import STEP_S, SteppingEngine, engine_config
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.request import Request, RequestStatus

from proxima_config import hints
from proxima_config.hints import RequestClass
from proxima_engine.gang import GangAsyncScheduler, GangScheduler
from proxima_engine.lab.bare_scheduler import bare_spec
from proxima_engine.launch import SCHEDULER_FACTORIES
from proxima_engine.policy.admission import ProximaPolicy
from proxima_engine.policy.plan import Plan, Reason, YieldMode
from proxima_engine.policy.view import StepView
from proxima_engine.scheduler import ProximaAsyncScheduler, ProximaScheduler
from proxima_engine.scheduling.support import reason_against
from proxima_engine.telemetry import SchedulerSnapshot

MAX_WAIT_S = 2.0
Start = Callable[..., SteppingEngine]


@pytest.fixture(scope="module")
def start() -> Start:
    def start(blocks: int = 40, kind: str = "proxima", *, overlap: bool = False, **flags: Any) -> SteppingEngine:
        options = {"max_wait_s": MAX_WAIT_S, **flags.pop("scheduler_options", {})}
        config = engine_config(overlap=overlap, scheduler_options=options, **flags)
        return SteppingEngine(config, blocks, kind)

    return start


def finish(engine: SteppingEngine) -> None:
    """Everyone ends with the text it would have had alone, and no block is lost."""
    engine.drain()
    engine.check_integrity()
    for request_id, text in engine.texts.items():
        produced = len(text) - len(engine.expected_text(request_id, 0))
        assert text == engine.expected_text(request_id, produced)


def long_head_and_short_ones(engine: SteppingEngine) -> None:
    engine.add("first", 32 * 20, 100)
    engine.step()
    engine.add("head", 32 * 30, 10)
    for index in range(6):
        engine.add(f"short{index}", 32, 20)


@pytest.mark.parametrize("overlap", [False, True], ids=["sync", "async"])
def test_short_requests_pass_a_head_that_does_not_fit(start: Start, overlap: bool) -> None:
    engine = start(overlap=overlap)
    long_head_and_short_ones(engine)
    engine.step()
    assert engine.start_order == ["first", *(f"short{index}" for index in range(6))]
    assert engine.scheduler.proxima_plan.held == {"head": Reason.BLOCKS}
    finish(engine)
    assert set(engine.ended.values()) == {"length"}


def test_native_lets_them_wait(start: Start) -> None:
    engine = start(kind="native")
    long_head_and_short_ones(engine)
    engine.step()
    assert engine.start_order == ["first"]
    finish(engine)
    assert engine.start_order[1] == "head"


@pytest.mark.parametrize("overlap", [False, True], ids=["sync", "async"])
def test_a_stream_of_short_requests_delays_the_head_by_no_more_than_twice_the_age_bound(
    start: Start, overlap: bool
) -> None:
    engine = start(overlap=overlap)
    engine.add("blocker", 32 * 12, 8)
    engine.step()
    engine.add("head", 32 * 30, 10)
    asked_s = engine.now_s
    for index in range(60):
        engine.add(f"short{index}", 32 * 2, 100)
        engine.step()
    finish(engine)
    passed_by = engine.start_order[1 : engine.start_order.index("head")]
    assert passed_by, "nobody was let past: there is nothing to bound"
    assert all(engine.started_s[name] - asked_s <= 2 * MAX_WAIT_S + STEP_S for name in passed_by)
    assert engine.started_s["head"] - asked_s <= 2 * MAX_WAIT_S + 2 * STEP_S
    assert engine.scheduler._report.snapshot().yields_total["recompute"] > 0


@pytest.mark.parametrize("overlap", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("chunked", [True, False], ids=["chunked", "whole"])
def test_prompts_that_come_together_do_not_hold_a_stream_up(
    start: Start, overlap: bool, chunked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of 300 tokens takes as long as a gap may. Prompts that may not be divided are left alone."""
    options = {"stall_s": 1.0, "max_wait_s": MAX_WAIT_S}
    engine = start(200, overlap=overlap, enable_chunked_prefill=chunked, scheduler_options=options)
    step_time = engine.scheduler._step_clock.step_time
    for _ in range(40):
        for tokens in (1, 400):
            step_time.learn(tokens, 0.2 + 0.002 * tokens)
    # All steps of this engine take equally long.
    monkeypatch.setattr(step_time, "learn", lambda *_: None)
    engine.add("stream", 32, 60)
    engine.step()
    for index in range(4):
        engine.add(f"long{index}", 32 * 16, 10)
    steps = [engine.step().total_num_scheduled_tokens for _ in range(20)]
    assert (max(steps) <= 300) is chunked
    assert sum(steps) >= 4 * 32 * 16
    finish(engine)


def test_a_preempted_request_keeps_its_place(start: Start) -> None:
    engine = start(blocks=12)
    # Without plans it is vLLM who preempts.
    engine.scheduler.proxima_policy = FailingPolicy(lambda _: True)
    engine.add("old", 32 * 4, 120)
    engine.add("young", 32 * 4, 120)
    engine.step()
    engine.add("newcomer", 32 * 4, 20)
    while engine.scheduler._report.snapshot().preemptions_total == 0:
        engine.step()
    assert [request.request_id for request in engine.scheduler.waiting] == ["young", "newcomer"]
    finish(engine)


def test_priorities_are_kept_under_priority_scheduling(start: Start) -> None:
    engine = start(blocks=14, scheduling_policy="priority")
    engine.add("running", 32 * 9, 40)
    engine.step()
    engine.add("low", 32 * 2, 4, priority=5)
    engine.add("high", 32 * 2, 4, priority=-5)
    engine.step()
    assert engine.start_order == ["running", "high"]
    finish(engine)


@pytest.mark.parametrize("overlap", [False, True], ids=["sync", "async"])
def test_a_full_batch_of_lower_priority_holds_nobody_up(start: Start, overlap: bool) -> None:
    """vllm#45561: vLLM's own scheduler lets the one of a higher priority wait until one of the others has ended."""
    started_after = {}
    for kind in ("native", "proxima"):
        engine = start(200, kind, overlap=overlap, scheduling_policy="priority", max_num_seqs=3)
        for index in range(4):
            engine.add(f"low{index}", 32, 40, priority=5)
        for _ in range(4):
            engine.step()
        engine.add("high", 32, 4, priority=-5)
        asked_s = engine.now_s
        finish(engine)
        started_after[kind] = round((engine.started_s["high"] - asked_s) / STEP_S)
    assert started_after["proxima"] == 0
    assert started_after["native"] > 30


@pytest.mark.parametrize("overlap", [False, True], ids=["sync", "async"])
def test_those_who_wait_for_a_grammar_take_no_place_in_the_batch(start: Start, overlap: bool) -> None:
    """vllm#53130: more of them than a batch may have, ahead of all others."""
    engine = start(overlap=overlap, max_num_seqs=2)
    deferred = [engine.add(f"deferred{index}", 32, 5) for index in range(4)]
    for request in deferred:
        request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    for index in range(3):
        engine.add(f"ready{index}", 32, 5)
    for _ in range(15):
        engine.step()
    assert sorted(engine.ended) == ["ready0", "ready1", "ready2"]
    for request in deferred:
        request.status = RequestStatus.WAITING
    finish(engine)
    assert len(engine.ended) == 7


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"watermark": 0.1},
        {"max_num_batched_tokens": 64},
        {"enable_chunked_prefill": False},
        {"scheduler_reserve_full_isl": False, "max_num_batched_tokens": 64},
    ],
    ids=lambda flags: "-".join(flags) or "defaults",
)
def test_one_that_takes_the_whole_pool_is_let_in(start: Start, flags: dict[str, Any]) -> None:
    """vllm#39734, #40946: where the gate asks for more than the pool can give, it waits for ever."""
    engine = start(blocks=40, **flags)
    engine.add("small", 32, 20)
    engine.step()
    engine.add("whole", 32 * 39, 32)
    engine.add("small too", 32, 20)
    finish(engine)
    assert set(engine.ended.values()) == {"length"}


def test_one_whose_adapter_has_no_slot_holds_no_blocks_back(start: Start) -> None:
    """Beside 9 blocks that one of another adapter holds, either of two fits."""
    engine = start(blocks=14, enable_lora=True, max_loras=1, max_lora_rank=8)
    engine.add("runs", 32 * 9, 40, adapter=1)
    engine.step()
    engine.add("waits", 32 * 2, 4, adapter=2)
    engine.add("passes", 32 * 2, 5)
    engine.step()
    assert engine.start_order == ["runs", "passes"]
    assert engine.scheduler._report.snapshot().waiting == {"lora": {"default": 1}}
    finish(engine)
    assert engine.start_order[2:] == ["waits"]


class TestHints:
    """One runs for 40 tokens in nine of 14 blocks; of those who wait only one can start beside it."""

    @pytest.fixture
    def engine(self, start: Start) -> SteppingEngine:
        engine = start(blocks=14)
        engine.add("running", 32 * 9, 40)
        engine.step()
        return engine

    def test_a_class_that_is_more_urgent_goes_first(self, engine: SteppingEngine) -> None:
        for request_class in ("flex", "default", "priority"):
            engine.add(request_class, 32 * 2, 4, hints={hints.CLASS: request_class})
        engine.step()
        waits = engine.scheduler._report.snapshot().waiting
        assert engine.start_order == ["running", "priority"]
        assert {name: count for counts in waits.values() for name, count in counts.items()} == {"default": 1, "flex": 1}
        finish(engine)
        assert engine.start_order[2:] == ["default", "flex"]

    def test_a_target_of_its_own_takes_the_place_of_the_setting(self, engine: SteppingEngine) -> None:
        """Both wait for a second: the one that would be cheaper has missed its target."""
        engine.add("cheap", 32, 4, hints={hints.TTFT_BUDGET_S: 0.5})
        engine.add("dear", 32 * 2, 4, hints={hints.TTFT_BUDGET_S: 60})
        engine.now_s += 1
        engine.step()
        assert engine.start_order[1] == "dear"
        finish(engine)

    @pytest.mark.parametrize(
        "senseless",
        [
            {},
            {"another": 1},
            {hints.CLASS: "no such class"},
            {hints.CLASS: ["priority"]},
            {hints.TTFT_BUDGET_S: -1, hints.DEADLINE_S: "soon"},
            {hints.TTFT_BUDGET_S: float("nan"), hints.DEADLINE_S: float("inf")},
        ],
    )
    def test_senseless_ones_count_as_absent(self, engine: SteppingEngine, senseless: dict[str, Any]) -> None:
        engine.add("cheap", 32, 4, hints=senseless)
        engine.add("dear", 32 * 2, 4)
        engine.step()
        assert engine.start_order[1] == "cheap"
        assert engine.scheduler.proxima_guard.failures_total == 0
        finish(engine)

    def test_estimates_count_those_who_go_first(self, engine: SteppingEngine) -> None:
        for name in ("a", "b", "c"):
            engine.add(name, 32 * 10, 4)
        engine.drain()
        engine.add("runs", 32 * 9, 40)
        engine.step()
        for name in ("d", "e"):
            engine.add(name, 32 * 10, 4, hints={hints.CLASS: "flex"})
        engine.step()
        estimates = engine.scheduler._report.snapshot().estimated_start_s
        assert estimates["priority"] == estimates["default"] == estimates["long"] == 0
        assert estimates["flex"] > 0
        finish(engine)

    def test_estimates_leave_out_the_late_whom_a_newcomer_passes(self, engine: SteppingEngine) -> None:
        for name in ("a", "b", "c"):
            engine.add(name, 32 * 10, 4)
        engine.drain()
        engine.add("runs", 32 * 9, 40)
        engine.step()
        engine.add("waits", 32 * 10, 4, hints={hints.TTFT_BUDGET_S: 0.5})
        engine.step()
        assert engine.scheduler._report.snapshot().estimated_start_s["default"] > 0
        engine.now_s += 1
        estimates = engine.scheduler._report.snapshot().estimated_start_s
        assert estimates["default"] == 0
        assert estimates["flex"] > 0, "even late ones go before a less urgent class"
        engine.now_s += 1000
        assert engine.scheduler._report.snapshot().estimated_start_s["priority"] > 0, (
            "it has waited too long to be passed"
        )
        finish(engine)


@pytest.mark.parametrize("planned", [True, False], ids=["planned", "just_come"])
def test_a_snapshot_counts_those_who_wait_by_reason_and_class(start: Start, planned: bool) -> None:
    engine = start(blocks=14)
    engine.add("running", 32 * 9, 40)
    engine.step()
    engine.add("old", 32 * 9, 4, hints={hints.CLASS: "flex"})
    engine.now_s += 1
    for name in ("a", "b"):
        engine.add(name, 32 * 10, 4)
    if planned:
        engine.step()
    told = engine.scheduler._report.snapshot()
    if planned:
        assert sum(sum(found.values()) for found in told.waiting.values()) == 3
        assert set(told.waiting) - {"behind_head"}, "somebody was looked at"
        assert all(count > 0 for found in told.waiting.values() for count in found.values())
    else:
        assert told.waiting == {"behind_head": {"default": 2, "flex": 1}}
    assert told.waiting_tokens == {"default": 2 * 32 * 10, "flex": 32 * 9}
    assert told.oldest_wait_s["flex"] == pytest.approx(1 + planned * STEP_S, abs=1e-3)
    assert told.oldest_wait_s["default"] == pytest.approx(planned * STEP_S, abs=1e-3)
    finish(engine)
    assert engine.scheduler._report.snapshot().waiting == {}


def test_shared_prefixes_count_once(start: Start) -> None:
    """Two prompts share 20 of 21 blocks: together they need 23, and fit into 25 although 2 x 22 would not."""
    engine = start(blocks=25)
    prompt = list(range(1, 32 * 20 + 1))
    engine.add("one", [*prompt, *[7] * 20], 30)
    engine.step()
    engine.add("two", [*prompt, *[8] * 20], 30)
    engine.step()
    assert engine.start_order == ["one", "two"]
    finish(engine)


class FailingPolicy:
    """Raises where it is told to, plans as usual otherwise."""

    def __init__(self, fails: Callable[[int], bool]) -> None:
        self.calls = 0
        self._fails = fails
        self._inner = ProximaPolicy(MAX_WAIT_S)

    def plan(self, view: StepView) -> Plan:
        self.calls += 1
        if self._fails(self.calls):
            message = "broken on purpose"
            raise ValueError(message)
        return self._inner.plan(view)


@pytest.mark.parametrize("overlap", [False, True], ids=["sync", "async"])
def test_one_policy_error_costs_one_plan_and_no_request(start: Start, overlap: bool) -> None:
    engine = start(overlap=overlap)
    engine.scheduler.proxima_policy = FailingPolicy(lambda call: call == 2)
    long_head_and_short_ones(engine)
    engine.step()
    snapshot = engine.scheduler._report.snapshot()
    assert (snapshot.policy_state, snapshot.policy_failures_total) == ("degraded", 1)
    assert snapshot.policy_last_error == "ValueError: broken on purpose"
    finish(engine)
    assert engine.scheduler._report.snapshot().policy_state == "ok"


def test_repeated_errors_switch_to_native_order_until_restart(start: Start) -> None:
    engine = start()
    policy = engine.scheduler.proxima_policy = FailingPolicy(lambda _: True)
    long_head_and_short_ones(engine)
    finish(engine)
    assert engine.start_order[:2] == ["first", "head"]
    assert engine.scheduler._report.snapshot().policy_state == "native"
    assert policy.calls == 3


def test_what_cannot_be_forecast_goes_by_arrival_and_says_so(start: Start) -> None:
    config = engine_config()
    config.parallel_config.pipeline_parallel_size = 2
    engine = SteppingEngine(config, blocks=40)
    long_head_and_short_ones(engine)
    finish(engine)
    assert engine.start_order[:2] == ["first", "head"]
    snapshot = engine.scheduler._report.snapshot()
    assert (snapshot.policy_state, snapshot.policy_failures_total) == ("native", 0)
    assert snapshot.policy_last_error.startswith("not for pipeline_parallel_size=2")


@pytest.mark.parametrize(
    ("settings_of", "told"),
    [
        pytest.param({}, None, id="nothing"),
        pytest.param({"encoder_decoder": True}, "encoder-decoder models", id="encoder_decoder"),
        pytest.param({"stages": 2}, "pipeline_parallel_size=2", id="stages"),
        pytest.param({"connector": "OffloadingConnector"}, "kv_transfer_config", id="connector"),
        pytest.param({"connector": "ProximaSwapConnector"}, None, id="own_connector"),
    ],
)
def test_each_engine_that_cannot_be_forecast_is_named(settings_of: dict[str, Any], told: str | None) -> None:
    connector = settings_of.get("connector")
    config = SimpleNamespace(
        model_config=SimpleNamespace(is_encoder_decoder=settings_of.get("encoder_decoder", False)),
        parallel_config=SimpleNamespace(pipeline_parallel_size=settings_of.get("stages", 1)),
        kv_transfer_config=SimpleNamespace(kv_connector=connector) if connector else None,
    )
    reason = reason_against(config, SimpleNamespace(kv_cache_groups=[]))
    assert (reason is None) if told is None else (reason is not None and reason.startswith(told))


def test_a_model_that_gives_blocks_back_while_it_answers_goes_by_arrival_and_says_so() -> None:
    """As with most layers of Gemma 3 and half of those of gpt-oss. Taken for blocks that stay, they would keep the pool
    half empty."""
    full = bare_spec(32)
    window = SlidingWindowSpec(block_size=32, num_kv_heads=1, head_size=64, dtype=full.dtype, sliding_window=64)

    def make(kv_cache_config: KVCacheConfig, **others: Any) -> ProximaScheduler:
        groups = [KVCacheGroupSpec(["all"], full), KVCacheGroupSpec(["near"], window)]
        return ProximaScheduler(kv_cache_config=replace(kv_cache_config, kv_cache_groups=groups), **others)

    engine = SteppingEngine(engine_config(), blocks=40, make_scheduler=make)
    for index in range(6):
        engine.add(f"r{index}", 32 * 8, 60)
    finish(engine)
    snapshot = engine.scheduler._report.snapshot()
    assert (snapshot.policy_state, snapshot.policy_failures_total) == ("native", 0)
    assert snapshot.policy_last_error.startswith("not for models with sliding windows or states")


def test_a_snapshot_tells_of_an_engine_that_nobody_has_asked_yet(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/snapshots"
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        socket.bind(endpoint)
        engine = SteppingEngine(engine_config(scheduler_options={"snapshot_endpoint": endpoint}), blocks=40)
        assert socket.poll(timeout=10_000)
        told = msgspec.msgpack.decode(socket.recv(), type=SchedulerSnapshot)
        engine.scheduler.shutdown()
    assert (told.step, told.running, told.blocks_total, told.policy_state) == (0, 0, 40, "ok")


def plan_of(**parts: Any) -> Callable[[StepView], Plan]:
    return lambda view: Plan(**parts)


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(Plan(order=("nobody",)), id="unknown_request"),
        pytest.param(Plan(order=("head", "head")), id="named_twice"),
        pytest.param(Plan(order=(), yields=(("head", YieldMode.RECOMPUTE),)), id="yields_while_waiting"),
        pytest.param(Plan(order=(), yields=(("first", YieldMode.SWAP),)), id="unsupported_mode"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_discarded_whole(start: Start, plan: Plan) -> None:
    engine = start()
    long_head_and_short_ones(engine)
    engine.scheduler.proxima_policy.plan = lambda view: plan
    engine.step()
    assert engine.scheduler._report.snapshot().policy_failures_total == 1
    assert [request.request_id for request in engine.scheduler.running] == ["first"]
    finish(engine)


def test_a_wrong_plan_cannot_stop_those_behind_it(start: Start) -> None:
    """A plan that promises blocks which are not there: vLLM refuses, and the next step tries others first."""
    engine = start(scheduler_options={"ttft_s": 0.1})
    long_head_and_short_ones(engine)
    # Late ones go in order of arrival.
    engine.now_s += 1.0
    engine.scheduler._view._exact_blocks = lambda request_id: 1
    engine.step()
    assert engine.start_order == ["first"]
    engine.step()
    assert engine.start_order[1:] == [f"short{index}" for index in range(6)]
    finish(engine)


def test_one_whose_prompt_was_put_off_is_not_taken_for_one_without_blocks(start: Start) -> None:
    """vLLM puts prompts off in some steps so that data-parallel ranks compute them together."""
    engine = start()
    engine.add("answers", 32, 20)
    engine.step()
    engine.add("put off", 32, 20)
    schedule = engine.scheduler.schedule
    engine.scheduler.schedule = lambda: schedule(throttle_prefills=True)
    engine.step()
    assert engine.start_order == ["answers"]
    engine.scheduler.schedule = schedule
    engine.step()
    assert engine.start_order == ["answers", "put off"]
    finish(engine)


actions = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 700), st.integers(1, 60)),
        st.tuples(st.sampled_from(RequestClass), st.integers(1, 700), st.integers(1, 60)),
        st.tuples(st.just("abort"), st.integers(0, 40), st.just(0)),
        st.tuples(st.just("step"), st.integers(1, 12), st.just(0)),
    ),
    min_size=5,
    max_size=60,
)


@pytest.mark.parametrize("overlap", [False, True], ids=["sync", "async"])
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    actions=actions,
    failing=st.sets(st.integers(1, 60), max_size=5),
    chunk=st.sampled_from([64, 2048]),
    order=st.sampled_from(["fcfs", "priority"]),
)
def test_whatever_happens_texts_are_right_and_no_block_is_lost(
    start: Start, overlap: bool, actions: list[tuple[str, int, int]], failing: set[int], chunk: int, order: str
) -> None:
    """Any sequence of arrivals, aborts and steps, long prefills in chunks, a policy that fails now and then."""
    engine = start(blocks=30, overlap=overlap, max_num_batched_tokens=chunk, max_num_seqs=12, scheduling_policy=order)
    engine.scheduler.proxima_policy = FailingPolicy(failing.__contains__)
    names: list[str] = []
    for action, number, tokens in actions:
        if action == "add" or isinstance(action, RequestClass):
            names.append(f"r{len(names)}")
            told = None if action == "add" else {hints.CLASS: action}
            engine.add(names[-1], number, tokens, hints=told, priority=number % 3)
        elif action == "abort" and number < len(names):
            engine.abort(names[number])
        elif action == "step":
            for _ in range(number):
                engine.step()
    finish(engine)
    assert set(engine.ended) == set(names)


@pytest.mark.parametrize(
    ("kind", "plain", "overlapping"),
    [("proxima", ProximaScheduler, ProximaAsyncScheduler), ("gang", GangScheduler, GangAsyncScheduler)],
)
def test_the_factory_follows_the_final_configuration(start: Start, kind: str, plain: type, overlapping: type) -> None:
    factory = pkgutil.resolve_name(SCHEDULER_FACTORIES[kind])
    for overlap, expected in ((False, plain), (True, overlapping)):
        scheduler = start(overlap=overlap).scheduler
        made = factory(
            scheduler.vllm_config, scheduler.kv_cache_config, scheduler.structured_output_manager, block_size=32
        )
        assert type(made) is expected


@pytest.mark.parametrize("overlap", [False, True], ids=["sync", "async"])
def test_a_night_without_requests_is_not_a_step_that_took_all_night(start: Start, overlap: bool) -> None:
    engine = start(overlap=overlap)
    engine.add("in_the_evening", 64, 20)
    finish(engine)
    engine.now_s += 8 * 3600
    for index in range(30):
        engine.add(f"in_the_morning{index}", 32 * 9, 40)
    policy, scheduler = engine.scheduler.proxima_policy, engine.scheduler
    known_s: set[float] = set()
    while scheduler.has_unfinished_requests():
        engine.step()
        assert STEP_S / 2 < scheduler._report.step_s() < 2 * STEP_S
        known_s |= {policy.bound_s(each) for each in scheduler._view._waiting.values()} - {math.inf}
    assert known_s
    assert max(known_s) < 60
    finish(engine)


@pytest.mark.parametrize("overlap", [False, True], ids=["sync", "async"])
def test_one_that_cannot_yield_because_of_an_error_of_ours_goes_on(start: Start, overlap: bool) -> None:
    engine = start(40, overlap=overlap)
    planned = engine.scheduler.proxima_policy
    asked = []

    def plan(view: StepView) -> Plan:
        if len(view.running) == 3 and view.running[-1].output_tokens == 5:
            asked.append(view.running[-1].request_id)
            return Plan(order=(), yields=((asked[-1], YieldMode.RECOMPUTE),))
        return planned.plan(view)

    def fail(request: Request) -> None:
        raise ValueError(request.request_id)

    engine.scheduler.proxima_policy = SimpleNamespace(plan=plan)
    engine.scheduler._report.preempted = fail
    for index in range(3):
        engine.add(f"r{index}", 40, 20)
    finish(engine)
    assert asked
    assert set(asked) <= {"r0", "r1", "r2"} == set(engine.ended)
    assert engine.scheduler.proxima_guard.failures_total == len(asked)


@pytest.mark.parametrize("overlap", [False, True], ids=["sync", "async"])
def test_who_shares_a_prefix_yields_by_plan_as_well(start: Start, overlap: bool) -> None:
    """What all of them hold is not free when one of them yields: vLLM would choose more of them by itself."""
    engine = start(40, overlap=overlap)
    prefix = [9] * 32 * 20
    for index in range(20):
        engine.add(f"short{index}", 32, 400, answer_tokens=3)
        engine.drain()
    for index in range(12):
        engine.add(f"sharer{index}", [*prefix, *[index + 10] * 20], 400)
    finish(engine)
    report = engine.scheduler._report
    assert report._preemptions == sum(report._yields.values()) > 0


@pytest.mark.parametrize(
    ("budget", "allowed", "aligned", "most"),
    [
        pytest.param(None, 2048, False, 2048, id="no_budget"),
        pytest.param(100, 2048, False, 100, id="budget"),
        pytest.param(2, 2048, False, 4, id="one_beside_the_answers"),
        pytest.param(2, 2048, True, 35, id="a_block_beside_the_answers"),
        pytest.param(100, 2048, True, 100, id="budget_of_blocks"),
        pytest.param(2, 20, True, 20, id="no_more_than_vllm_allows"),
    ],
)
def test_a_step_has_room_for_the_answers_and_the_least_part_of_a_prompt(
    start: Start, budget: int | None, allowed: int, aligned: bool, most: int
) -> None:
    """``aligned``: as for models with states, of whose prompts vLLM computes whole blocks."""
    engine = start()
    for index in range(3):
        engine.add(f"r{index}", 32, 20)
    engine.step()
    scheduler = engine.scheduler
    scheduler.need_mamba_block_aligned_split = aligned
    scheduler.proxima_plan = Plan(order=(), token_budget=budget)
    assert scheduler._most_tokens(allowed) == most
