"""Prompts of a step are bounded by the time that those who stream may stand still."""

from __future__ import annotations

import random

import pytest

from proxima_engine.policy.pace import EXCEEDED, GAIN, LEAST_STEPS, LEAST_TOKENS, SHARE, StepTime, token_budget

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
    step_time = measured(10, 500)
    budget = token_budget(step_time, 2.0, running=10)
    assert budget is not None
    assert step_time.margin * (BASE_S + TOKEN_S * budget) == pytest.approx(SHARE * 2.0, abs=3 * TOKEN_S)


@pytest.mark.parametrize("longest", [1.02, 1.4, 2.0])
def test_few_of_the_longer_steps_exceed_the_margin_however_far_they_are_from_the_line(longest: float) -> None:
    step_time, exceeded = measured(10, 500), []
    rng = random.Random(0)
    for _ in range(6000):
        step_time.learn(10, BASE_S + TOKEN_S * 10)
        took_s = (BASE_S + TOKEN_S * 500) * rng.uniform(1, longest)
        base_s, token_s = step_time.fit()
        exceeded.append(took_s > step_time.margin * (base_s + token_s * 500))
        step_time.learn(500, took_s)
    settled = exceeded[len(exceeded) // 2 :]
    assert sum(settled) / len(settled) == pytest.approx(EXCEEDED, abs=EXCEEDED)
    # Where the line is good, little is kept free for its error.
    assert step_time.margin < longest + GAIN


def test_nobody_who_runs_waits_for_nothing() -> None:
    assert token_budget(measured(10, 500), 2.0, running=0) is None


def test_there_is_no_bound_where_answers_alone_take_too_long() -> None:
    step_time = measured(10, 500)
    fits = int((SHARE * 2.0 / step_time.margin - BASE_S) / TOKEN_S)
    assert token_budget(step_time, 2.0, running=fits - LEAST_TOKENS - 2) is not None
    assert token_budget(step_time, 2.0, running=fits - LEAST_TOKENS + 2) is None
    assert token_budget(measured(10, 500), BASE_S / 2, running=1) is None


def test_prompts_of_a_step_are_not_cut_below_what_the_step_itself_costs() -> None:
    """With a base of 1 s and 2 ms a token, prompts of less than 500 tokens a step would be half idle time."""
    dear = measured(10, 500, base_s=1.0)
    enough_s = (2 * 1.0 + TOKEN_S) * dear.margin / SHARE
    assert token_budget(dear, 0.99 * enough_s, running=1) is None
    assert token_budget(dear, 1.01 * enough_s, running=1) is not None
