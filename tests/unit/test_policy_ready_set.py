"""The ready-set policy on hand-made views: who starts, who is passed, who gives way."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from step_views import running, view, waiting

from proxima_engine.policy.admission import EXACT_LOOKUPS_PER_STEP, ReadySetPolicy
from proxima_engine.policy.demand import blocks_for, growth_blocks, tokens_until_free
from proxima_engine.policy.plan import Plan, Reason, YieldMode
from proxima_engine.policy.view import RunningRequest, WaitingRequest

MAX_WAIT_S = 10.0


@pytest.fixture
def policy() -> ReadySetPolicy:
    return ReadySetPolicy(MAX_WAIT_S)


def test_everyone_starts_in_arrival_order_when_all_fit(policy: ReadySetPolicy) -> None:
    plan = policy.plan(view(waiting("a", 1, 3), waiting("b", 2, 4), free=10))
    assert plan == Plan(order=("a", "b"), held={}, peak_blocks=7)


def test_a_head_that_does_not_fit_is_passed(policy: ReadySetPolicy) -> None:
    plan = policy.plan(view(waiting("head", 1, 20), waiting("small", 2, 4), waiting("big", 3, 9), free=10))
    assert plan.order == ("small",)
    assert plan.held == {"head": Reason.BLOCKS, "big": Reason.BLOCKS}
    assert plan.backfilled == 1


def test_blocks_that_running_requests_need_in_this_step_are_not_given_away(policy: ReadySetPolicy) -> None:
    plan = policy.plan(view(waiting("a", 1, 3), free=4, busy=(running("r", 0, 5, growth=2),)))
    assert plan.order == ()
    assert plan.held == {"a": Reason.BLOCKS}
    assert plan.peak_blocks == 7


def test_nobody_passes_a_request_that_was_passed_for_too_long(policy: ReadySetPolicy) -> None:
    queue = (waiting("head", 1, 20), waiting("small", 2, 4))
    policy.plan(view(*queue, free=10, now_s=100.0))
    late = view(waiting("head", 1, 20), waiting("other", 3, 4), free=10, now_s=100.0 + MAX_WAIT_S)
    plan = policy.plan(late)
    assert plan.order == ()
    assert plan.held == {"head": Reason.BLOCKS, "other": Reason.BEHIND_HEAD}


def test_the_age_bound_starts_when_somebody_passes_and_not_at_arrival(policy: ReadySetPolicy) -> None:
    policy.plan(view(waiting("head", 1, 20), free=10, now_s=100.0))
    plan = policy.plan(view(waiting("head", 1, 20), waiting("small", 2, 4), free=10, now_s=100.0 + 5 * MAX_WAIT_S))
    assert plan.order == ("small",)


def test_a_bound_of_zero_keeps_arrival_order() -> None:
    plan = ReadySetPolicy(0).plan(view(waiting("head", 1, 20), waiting("small", 2, 4), free=10))
    assert plan.held == {"head": Reason.BLOCKS, "small": Reason.BEHIND_HEAD}


def test_those_who_passed_give_their_blocks_back_once_the_bound_is_reached(policy: ReadySetPolicy) -> None:
    policy.plan(view(waiting("head", 5, 20), waiting("first", 6, 4), free=18, now_s=100.0))
    busy = (
        running("older", 1, 30, started_s=50.0),
        running("first", 6, 4, started_s=100.1),
        running("last", 7, 4, started_s=103.0),
    )
    plan = policy.plan(view(waiting("head", 5, 20), free=17, now_s=100.0 + MAX_WAIT_S, busy=busy))
    assert plan.order == ("head",)
    assert plan.yields == (("last", YieldMode.RECOMPUTE),)
    assert plan.peak_blocks == 38 + 20 - 4


def test_nobody_yields_when_it_would_not_be_enough(policy: ReadySetPolicy) -> None:
    policy.plan(view(waiting("head", 5, 40), waiting("first", 6, 4), free=10, now_s=100.0))
    busy = (running("older", 1, 30, started_s=50.0), running("first", 6, 4, started_s=100.1))
    plan = policy.plan(view(waiting("head", 5, 40), free=6, now_s=100.0 + MAX_WAIT_S, busy=busy))
    assert plan.yields == ()
    assert plan.held == {"head": Reason.BLOCKS}
    assert plan.head_start_s == pytest.approx(100 * 0.05)


def test_a_cached_prefix_lets_a_request_start(policy: ReadySetPolicy) -> None:
    plan = policy.plan(view(waiting("a", 1, 20), free=10, exact={"a": 8}))
    assert plan.order == ("a",)
    assert plan.peak_blocks == 8


def test_prefix_lookups_per_step_are_bounded(policy: ReadySetPolicy) -> None:
    asked: list[str] = []

    def exact(request_id: str) -> int:
        asked.append(request_id)
        return 20

    queue = [waiting(f"r{index}", index, 20) for index in range(50)]
    policy.plan(replace(view(*queue, free=10), exact_blocks=exact))
    assert asked == [f"r{index}" for index in range(EXACT_LOOKUPS_PER_STEP)]


def test_a_full_batch_is_named_as_the_reason(policy: ReadySetPolicy) -> None:
    plan = policy.plan(view(waiting("a", 1, 1), waiting("b", 2, 1), waiting("c", 3, 1), free=10, slots=1))
    assert plan.order == ("a",)
    assert plan.held == {"b": Reason.SLOTS, "c": Reason.SLOTS}


def test_a_request_without_its_grammar_is_shown_to_vllm_and_costs_nothing(policy: ReadySetPolicy) -> None:
    plan = policy.plan(view(waiting("json", 1, 8, Reason.GRAMMAR), waiting("a", 2, 9), free=10))
    assert plan.order == ("json", "a")
    assert plan.held == {"json": Reason.GRAMMAR}
    assert plan.backfilled == 0


requests = st.lists(st.integers(1, 40), max_size=30)


@given(sizes=requests, free=st.integers(0, 60), slots=st.integers(0, 20), growth=st.integers(0, 5))
def test_a_plan_never_promises_more_than_there_is(sizes: list[int], free: int, slots: int, growth: int) -> None:
    queue = [waiting(f"r{index:02}", index, size) for index, size in enumerate(sizes)]
    busy = (running("busy", -1, 3, growth=growth),)
    plan = ReadySetPolicy(MAX_WAIT_S).plan(view(*queue, free=free, slots=slots, busy=busy))
    size_of = {request.request_id: request.blocks_at_most for request in queue}
    assert sum(size_of[name] for name in plan.order) <= max(0, free - growth)
    assert len(plan.order) <= slots
    assert set(plan.order) | set(plan.held) == set(size_of)
    assert not set(plan.order) & set(plan.held)


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 8)), min_size=1, max_size=40))
def test_every_request_starts_within_the_bound_of_those_ahead(arrivals: list[tuple[int, int]]) -> None:
    """A pool of 12 blocks, one arrival a second, each running for a few seconds: nobody is passed beyond the bound."""
    policy = ReadySetPolicy(MAX_WAIT_S)
    queue: list[WaitingRequest] = []
    busy: dict[str, tuple[RunningRequest, float]] = {}
    lasts = {f"r{index:02}": duration for index, (_, duration) in enumerate(arrivals)}
    passed_at: dict[str, float] = {}
    for second in range(len(arrivals) * 9 + 20):
        now_s = float(second)
        busy = {name: entry for name, entry in busy.items() if entry[1] > now_s}
        if second < len(arrivals):
            queue.append(waiting(f"r{second:02}", now_s, arrivals[second][0]))
        free = 12 - sum(request.blocks for request, _ in busy.values())
        plan = policy.plan(view(*queue, free=free, now_s=now_s, busy=tuple(entry[0] for entry in busy.values())))
        by_name = {request.request_id: request for request in queue}
        for name, _ in plan.yields:
            victim = busy.pop(name)[0]
            queue.append(waiting(name, victim.arrival_s, victim.blocks))
        for name in plan.order:
            for older in by_name.values():
                if older.key < by_name[name].key and older.request_id not in plan.order:
                    passed_at.setdefault(older.request_id, now_s)
                    assert now_s - passed_at[older.request_id] < MAX_WAIT_S
            request = by_name[name]
            started = running(name, request.arrival_s, request.blocks_at_most, started_s=now_s + 0.5)
            busy[name] = (started, now_s + lasts[name])
            passed_at.pop(name, None)
        queue = sorted((request for request in queue if request.request_id not in plan.order), key=lambda r: r.key)
    assert not queue


def test_block_arithmetic() -> None:
    assert [blocks_for(tokens, 32) for tokens in (0, 1, 32, 33)] == [0, 1, 1, 2]
    assert growth_blocks(32, 33, 32) == 1
    assert growth_blocks(33, 64, 32) == 0
    assert tokens_until_free([running("a", 1, 5)], 6) is None
    assert tokens_until_free([running("a", 1, 5)], 5) == 100
