"""How many are let in so that most meet their deadlines: against a simulated engine that all share."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxima_server.door.attainment import FORGOTTEN_AFTER_S, MIN_OUTCOMES, Attainment
from proxima_server.door.deadlines import Deadline

TOTAL = (Deadline.TOTAL, 6.0)


def noted(attainment: Attainment, outcomes: list[bool], *, start_s: float = 0, on_their_way: int = 40) -> None:
    attainment.limit(TOTAL, 1, start_s)
    for number, met in enumerate(outcomes):
        now_s = start_s + 7 * number / len(outcomes)
        attainment.note(TOTAL, 1, met=met, on_their_way=on_their_way, now_s=now_s)
    attainment.note(TOTAL, 1, met=outcomes[-1], on_their_way=on_their_way, now_s=start_s + 7)


def test_nothing_is_limited_without_misses():
    attainment = Attainment()
    noted(attainment, [True] * 50)
    assert attainment.limit(TOTAL, 1, 7) == math.inf


def test_a_few_misses_are_the_client_s_own_affair():
    attainment = Attainment()
    noted(attainment, [True, True, False] * 20)
    assert attainment.limit(TOTAL, 1, 7) == math.inf


@pytest.mark.parametrize(("outcomes", "limit"), [([False] * 20, 10), ([False, False, True] * 10, 20)])
def test_where_most_are_late_fewer_are_let_in(outcomes, limit):
    attainment = Attainment()
    noted(attainment, outcomes)
    assert attainment.limit(TOTAL, 1, 7) == limit


def test_a_handful_says_nothing():
    attainment = Attainment()
    noted(attainment, [False] * (MIN_OUTCOMES - 2))
    assert attainment.limit(TOTAL, 1, 7) == math.inf


def test_impossible_deadlines_harm_only_those_who_set_them():
    attainment = Attainment()
    noted(attainment, [False] * 50)
    assert attainment.limit((Deadline.TOTAL, 30.0), 1, 7) == math.inf
    assert attainment.limit((Deadline.FIRST_TOKEN, 6.0), 1, 7) == math.inf
    assert attainment.limit(TOTAL, 0, 7) == math.inf


def test_a_limit_is_forgotten():
    attainment = Attainment()
    noted(attainment, [False] * 50)
    assert attainment.limit(TOTAL, 1, FORGOTTEN_AFTER_S) < math.inf
    assert attainment.limit(TOTAL, 1, 8 + FORGOTTEN_AFTER_S) == math.inf


@settings(deadline=None, max_examples=25)
@given(
    capacity=st.floats(50, 1000),
    tokens=st.integers(10, 60),
    overload=st.floats(2, 10),
)
def test_overload_never_makes_all_late_for_long(capacity, tokens, overload):
    """A processor-sharing engine: all on their way get the same part of `capacity` tokens a second. It could serve
    `feasible` requests in time at once; of those that come, several times as many, a good part is served in time."""
    attainment = Attainment()
    feasible = capacity * TOTAL[1] / tokens
    arrivals_per_s = overload * capacity / tokens
    running: list[list[float]] = []  # arrival, tokens left
    now_s, due, served_late_half, step_s = 0.0, 0.0, 0, 0.1
    while now_s < 120:
        now_s += step_s
        due += arrivals_per_s * step_s
        while due >= 1:
            due -= 1
            if len(running) + 1 <= attainment.limit(TOTAL, 1, now_s):
                running.append([now_s, float(tokens)])
        share = capacity * step_s / max(1, len(running))
        on_their_way = len(running)
        for request in running:
            request[1] -= share
        for request in [each for each in running if each[1] <= 0 or now_s - each[0] >= TOTAL[1]]:
            running.remove(request)
            met = request[1] <= 0
            attainment.note(TOTAL, 1, met=met, on_their_way=on_their_way, now_s=now_s)
            served_late_half += met and now_s > 60
    possible = 60 * capacity / tokens
    if feasible > 2 * MIN_OUTCOMES:
        assert served_late_half > possible / 3
