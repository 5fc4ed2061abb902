"""How much work planning a step is as the queue grows: operations counted, not seconds."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import pytest
from stepping_engine import SteppingEngine, engine_config

FEW, MANY = 1_000, 10_000


def operations(of: Callable[[], object]) -> int:
    """Calls of Python and of C functions."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        of()
    finally:
        sys.setprofile(None)
    return count


def crowded(waiting: int) -> SteppingEngine:
    """One runs in a pool that is full then."""
    engine = SteppingEngine(engine_config(scheduler_options={"max_wait_s": 1e6}), blocks=40)
    engine.add("runs", 32 * 38, 60)
    engine.step()
    for number in range(waiting):
        engine.add(f"r{number}", 32 * 10, 50)
    return engine


def planning(engine: SteppingEngine) -> int:
    """Of the next step; all of its own work is before vLLM's `schedule()`."""
    scheduler, counts = engine.scheduler, []
    plan_step = scheduler._plan_step

    def counted() -> object:
        plans: list[object] = []
        counts.append(operations(lambda: plans.append(plan_step())))
        return plans[0]

    scheduler._plan_step = counted
    try:
        engine.step()
    finally:
        scheduler._plan_step = plan_step
    return counts[0]


def test_taking_in_a_crowd_costs_no_more_than_n_log_n():
    few, many = planning(crowded(FEW)), planning(crowded(MANY))
    assert many / few <= 1.1 * (MANY * math.log(MANY)) / (FEW * math.log(FEW))


def test_a_step_beside_a_crowd_costs_what_has_changed():
    """Each step one more arrives, and some have missed their target meanwhile; the crowd itself costs nothing."""

    def steps(waiting: int) -> int:
        engine = crowded(waiting)
        for number in range(3):
            engine.add(f"early{number}", 32 * 10, 50)
            engine.step()
        total = 0
        for number in range(30):
            engine.add(f"late{number}", 32 * 10, 50)
            total += planning(engine)
        assert len(engine.scheduler.waiting) == waiting + 33, "without a crowd this shows nothing"
        return total

    few, many = steps(FEW), steps(MANY)
    assert many <= 1.5 * few


@pytest.mark.parametrize("planned", [True, False], ids=["planned", "just_come"])
def test_a_snapshot_asks_little_of_each_who_waits(planned: bool) -> None:
    """It is made between two steps. ``planned``: a plan has taken them in."""

    def telling(waiting: int) -> int:
        engine = crowded(waiting)
        if planned:
            engine.step()
        return operations(engine.scheduler._report.snapshot)

    # Of those who have just come the hints have to be read.
    most = 6 if planned else 25
    assert telling(MANY) - telling(FEW) <= most * (MANY - FEW)
