"""Prompts of a step are bounded by the time that those who stream may stand still."""

from __future__ import annotations

import pytest

from proxima_engine.policy.pace import LEAST_STEPS, LEAST_TOKENS, SHARE, StepTime, token_budget

BASE_S, TOKEN_S = 0.1, 0.002


def measured(*tokens: int, base_s: float = BASE_S, token_s: float = TOKEN_S) -> StepTime:
    """Each number of tokens measured often enough to count."""
    step_time = StepTime()
    for count in tokens * LEAST_STEPS * 2:
        step_time.learn(count, base_s + token_s * count)
    return step_time


def test_base_and_token_are_told_apart() -> None:
    assert measured(10, 500).fit() == pytest.approx((BASE_S, TOKEN_S))


def test_what_has_changed_is_learned_anew() -> None:
    step_time = measured(10, 500)
    for _ in range(1000):
        step_time.learn(10, 0.2 + 0.004 * 10)
        step_time.learn(500, 0.2 + 0.004 * 500)
    assert step_time.fit() == pytest.approx((0.2, 0.004), rel=0.02)


@pytest.mark.parametrize("tokens", [(), (10,)], ids=["nothing measured", "steps all alike"])
def test_there_is_no_bound_before_a_token_has_a_price(tokens: tuple[int, ...]) -> None:
    assert token_budget(measured(*tokens), 2.0, running=10) is None


def test_a_bounded_step_takes_no_longer_than_its_share_of_the_target() -> None:
    budget = token_budget(measured(10, 500), 2.0, running=10)
    assert budget is not None
    assert BASE_S + TOKEN_S * budget == pytest.approx(SHARE * 2.0, abs=2 * TOKEN_S)


def test_nobody_who_runs_waits_for_nothing() -> None:
    assert token_budget(measured(10, 500), 2.0, running=0) is None


def test_there_is_no_bound_where_answers_alone_take_too_long() -> None:
    fits = int((SHARE * 2.0 - BASE_S) / TOKEN_S)
    assert token_budget(measured(10, 500), 2.0, running=fits - LEAST_TOKENS - 2) is not None
    assert token_budget(measured(10, 500), 2.0, running=fits - LEAST_TOKENS + 2) is None
    assert token_budget(measured(10, 500), BASE_S / 2, running=1) is None


def test_prompts_of_a_step_are_not_cut_below_what_the_step_itself_costs() -> None:
    """With a base of 1 s and 2 ms a token, prompts of less than 500 tokens a step would be half idle time."""
    dear = measured(10, 500, base_s=1.0)
    assert token_budget(dear, 2.4, running=1) is None
    assert token_budget(dear, 2.6, running=1) is not None
