"""How much is computed again: what the metric says against what the memory has seen."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stepping_engine import SteppingEngine, engine_config

from proxima_engine.policy.plan import Plan, YieldMode
from proxima_engine.policy.view import StepView
from proxima_engine.scheduling.recomputed import counted_native

overlaps = pytest.mark.parametrize("overlap", [False, True], ids=["sync", "async"])


class Restless:
    """Starts whoever fits, and lets one yield where the numbers say so."""

    def __init__(self, turns: Iterator[int]) -> None:
        self._turns = turns

    def plan(self, view: StepView) -> Plan:
        turn = next(self._turns, 0)
        if turn and len(view.running) > 1:
            victim = view.running[turn % len(view.running)]
            return Plan(order=(), yields=((victim.request_id, YieldMode.RECOMPUTE),))
        return Plan(order=tuple(request.request_id for request in view.waiting))


class Watched:
    """Counts positions that the memory of an engine computes for the second time."""

    def __init__(self, engine: SteppingEngine) -> None:
        self.again = 0
        self._reached: dict[str, int] = {}
        self._compute = engine.memory.compute
        engine.memory.compute = self._counted  # type: ignore[method-assign]

    def _counted(self, request_id: str, tokens: list[int], start: int, end: int) -> bool:
        reached = self._reached.get(request_id, 0)
        self.again += max(0, min(end, reached) - start)
        self._reached[request_id] = max(reached, end)
        return self._compute(request_id, tokens, start, end)


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 3), max_size=60),
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 60)), min_size=2, max_size=6),
    st.booleans(),
    st.booleans(),
    st.integers(2, 80),
)
def test_every_token_that_is_computed_again_is_counted(
    turns: list[int], requests: list[tuple[int, int]], overlap: bool, caching: bool, aborted_after: int
) -> None:
    config = engine_config(overlap=overlap, enable_prefix_caching=caching, max_num_batched_tokens=128)
    engine = SteppingEngine(config, 40)
    engine.scheduler.proxima_policy = Restless(iter(turns))
    watched = Watched(engine)
    for index, (prompt, answer) in enumerate(requests):
        engine.add(f"r{index}", prompt, answer)
    told = [0]
    while engine.scheduler.has_unfinished_requests():
        engine.step()
        told.append(engine.scheduler._report.snapshot().recomputed_tokens_total)
        if len(told) == aborted_after:
            engine.abort("r0")
    engine.drain()
    assert told == sorted(told), "a counter never falls"
    # A step in flight is scheduled and not computed yet.
    assert engine.scheduler._report.snapshot().recomputed_tokens_total == watched.again


@overlaps
def test_vllms_own_scheduler_can_be_counted_too(overlap: bool) -> None:
    engine = SteppingEngine(engine_config(overlap=overlap), 20, make_scheduler=counted_native)
    watched = Watched(engine)
    for index in range(6):
        engine.add(f"r{index}", 32 * 2, 200)
    engine.drain()
    scheduler: Any = engine.scheduler
    assert watched.again > 0
    assert scheduler.recomputed.total == watched.again


def test_nothing_is_remembered_of_those_who_ended() -> None:
    engine = SteppingEngine(engine_config(), 40)
    engine.scheduler.proxima_policy = Restless(repeat(1, 5))
    engine.add("a", 64, 20)
    engine.add("b", 64, 20)
    engine.drain()
    recomputed = engine.scheduler._report._recomputed
    assert recomputed.total > 0
    assert not recomputed._behind


def test_with_the_newer_model_runner_too() -> None:
    """For it vLLM lists those who resume as new requests."""
    engine = SteppingEngine(engine_config(enable_prefix_caching=False), 40, newer_runner=True)
    engine.scheduler.proxima_policy = Restless(iter([0] * 5 + [1]))
    watched = Watched(engine)
    engine.add("a", 64, 20)
    engine.add("b", 64, 20)
    engine.drain()
    assert watched.again > 64
    assert engine.scheduler._report.snapshot().recomputed_tokens_total == watched.again
