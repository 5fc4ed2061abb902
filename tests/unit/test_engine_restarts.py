"""How often a lost engine is started again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxima_engine.restarts import LONGEST_PAUSE_S, RestartBudget


def test_pauses_grow_and_the_budget_ends():
    budget = RestartBudget(3, window_s=100)
    assert [budget.take(0), budget.take(5), budget.take(10), budget.take(15)] == [1.0, 2.0, 4.0, None]


def test_old_restarts_are_forgotten():
    budget = RestartBudget(2, window_s=100)
    assert [budget.take(0), budget.take(90), budget.take(99)] == [1.0, 2.0, None]
    assert budget.take(100) == 2.0


def test_none_are_given_by_default():
    assert RestartBudget(0, window_s=100).take(0) is None


@given(st.integers(0, 5), st.floats(1, 1000), st.lists(st.floats(0, 300), max_size=30))
def test_no_window_holds_more_than_the_limit(limit, window_s, gaps):
    budget, now_s, taken = RestartBudget(limit, window_s), 0.0, []
    for gap in gaps:
        now_s += gap
        pause_s = budget.take(now_s)
        if pause_s is not None:
            assert 0 < pause_s <= LONGEST_PAUSE_S
            taken.append(now_s)
    for first in taken:
        assert sum(first <= each < first + window_s for each in taken) <= limit
