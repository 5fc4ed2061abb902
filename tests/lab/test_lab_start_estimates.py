"""When those who wait are told to start, against when they do: a scripted load of random lengths, in virtual time."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from proxima_engine.lab.arms import ARMS, ArmContext
from proxima_engine.lab.cost import Fitted
from proxima_engine.lab.engine import EngineShape, LabEngine
from proxima_engine.lab.profiles import Limits
from proxima_engine.lab.requests import LabRequest
from proxima_engine.policy.protocol import FinishedRequest

STEP_S = 0.1
STEADY = Fitted(step=STEP_S, token=0, sequence=0, context_token=0, attention_pair=0, host_gap_s=0)
CAP = 1000
LIMITS = Limits(max_num_batched_tokens=4096, max_num_seqs=256, async_scheduling=False)
ASKED_EVERY = 7
"""Steps. No divisor of the 16 after which plans look anew, lest all are asked at the same time before or after that."""


@dataclass(frozen=True)
class Told:
    place: int
    reason: str
    estimate_s: float
    reserved_s: float | None
    """By when the plan's reservation is."""
    waited_s: float
    """From then on, in truth."""


def answers(rng: random.Random) -> Iterator[tuple[int, int]]:
    """Lengths of prompt and answer: the middle half of answers has 86 to 255 tokens of the 1000 that are allowed."""
    while True:
        yield rng.randint(32, 400), min(CAP, max(1, int(rng.lognormvariate(5, 0.8))))


@dataclass(frozen=True)
class Run:
    told: list[Told]
    started_s: dict[str, float]


def run(*, ask: bool) -> Run:
    """80 requests at once, of which some 18 fit: what each of the others is told, every 7 steps until it starts."""
    spec = ARMS["proxima"]
    shape = EngineShape(400, 16, 4096, LIMITS, spec.watermark)
    context = ArmContext(ttft_s=2.0, stall_s=0.2, max_wait_s=75.0, true_lengths={}, seed=0)
    lab = LabEngine(shape, STEADY, spec.make(context), shortcuts=True)
    lengths = answers(random.Random(7))
    for number in range(200):
        prompt, answer = next(lengths)
        lab.scheduler.proxima_policy.finished(FinishedRequest(f"before{number}", prompt, answer, CAP))
    for number in range(80):
        prompt, answer = next(lengths)
        lab.add(LabRequest(f"r{number}", 0.0, prompt, answer, CAP))
    seen: list[tuple[float, str, Told]] = []
    started_s: dict[str, float] = {}
    while lab.scheduler.has_unfinished_requests():
        lab.advance()
        for running in lab.scheduler.running:
            started_s.setdefault(running.request_id, lab.now_s)
        if not ask or round(lab.now_s / STEP_S) % ASKED_EVERY:
            continue
        states = [state for state in lab.scheduler._report.requests() if state.reason and not state.output_tokens]
        for place, state in enumerate(states):
            plan = lab.scheduler.proxima_plan
            what = Told(place, state.reason, state.start_s, plan.head_start_s, 0.0)
            seen.append((lab.now_s, state.request_id, what))
    lab.check_integrity()
    told = [
        Told(each.place, each.reason, each.estimate_s, each.reserved_s, started_s[name] - now_s)
        for now_s, name, each in seen
    ]
    return Run(told, started_s)


@pytest.fixture(scope="module")
def asked() -> Run:
    return run(ask=True)


@pytest.fixture
def told(asked: Run) -> list[Told]:
    return asked.told


def test_to_ask_changes_nothing(asked):
    assert run(ask=False).started_s == asked.started_s


def test_half_of_all_estimates_are_within_30_percent(told):
    errors = [abs(each.estimate_s / each.waited_s - 1) for each in told]
    assert len(errors) > 1000
    assert statistics.median(errors) < 0.3


def test_estimates_are_as_often_too_long_as_too_short(told):
    """Near as far ahead."""
    for first, last in ((0, 5), (5, 20), (20, 80)):
        ratios = [each.estimate_s / each.waited_s for each in told if first <= each.place < last]
        assert 0.7 < statistics.median(ratios) < 1.3


def test_the_first_is_told_when_it_starts_rather_than_by_when_it_fits_for_sure(told):
    heads = [each for each in told if not each.place and each.reason == "forecast" and each.reserved_s]
    assert len(heads) > 20
    assert 0.7 < statistics.median(each.estimate_s / each.waited_s for each in heads) < 1.3
    assert statistics.median(each.reserved_s / each.waited_s for each in heads) > 2
