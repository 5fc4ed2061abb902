"""Survival curves of answer lengths: what they learn, from whom, and how fast they forget."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxima_engine.policy.forecast import EDGES, WINDOW, Group, LengthForecast, _Counts, bins_of, group_of

GROUP, CAP = group_of(100, 4000), 4000
CLOSE = 0.15
"""Curves have four points in each octave, so a length is known within a fifth of itself."""


def learned(*lengths: int, group: Group = GROUP, cap: int = CAP, times: int = 1) -> LengthForecast:
    forecast = LengthForecast()
    teach(forecast, *lengths, group=group, cap=cap, times=times)
    return forecast


def teach(forecast: LengthForecast, *lengths: int, group: Group = GROUP, cap: int = CAP, times: int = 1) -> None:
    for _ in range(times):
        for length in lengths:
            forecast.learn(group, length, cap)
    look(forecast, cap=cap)


def look(forecast: LengthForecast, *running: int, cap: int = CAP) -> None:
    forecast.see_cap(cap)
    forecast.look(np.array(running, dtype=np.int64))


def expected(forecast: LengthForecast, group: Group = GROUP, cap: int = CAP) -> float:
    return forecast.curve(group).expected_tokens(cap)


prompts, caps = st.integers(0, 200_000), st.integers(1, 200_000)
answers = st.lists(st.tuples(prompts, st.integers(0, 200_000), caps), max_size=40)
positions = st.lists(st.integers(0, 300_000), max_size=20)


@settings(deadline=None)
@given(ended=answers, running=positions, asked=st.tuples(prompts, caps))
def test_a_curve_only_falls_and_stays_between_0_and_1(
    ended: list[tuple[int, int, int]], running: list[int], asked: tuple[int, int]
) -> None:
    forecast = LengthForecast()
    for prompt, output, cap in ended:
        forecast.learn(group_of(prompt, cap), min(output, cap), cap)
    look(forecast, *running, cap=asked[1])
    for group in [group_of(*asked), *(group_of(prompt, cap) for prompt, _, cap in ended)]:
        curve = forecast.curve(group)
        assert (curve.survival > 0).all()
        assert curve.survival[0] == 1
        assert (np.diff(curve.survival) <= 0).all()


@settings(deadline=None)
@given(ended=answers, running=positions, caps=st.lists(st.integers(0, 2_000_000), min_size=2, max_size=8))
def test_an_expected_length_is_at_most_the_cap_and_grows_with_it(
    ended: list[tuple[int, int, int]], running: list[int], caps: list[int]
) -> None:
    forecast = LengthForecast()
    for prompt, output, cap in ended:
        forecast.learn(group_of(prompt, cap), min(output, cap), cap)
    look(forecast, *running)
    lengths = [expected(forecast, cap=cap) for cap in sorted(caps)]
    assert lengths == sorted(lengths)
    assert all(0 <= length <= cap * (1 + 1e-12) for length, cap in zip(lengths, sorted(caps), strict=True))


@pytest.mark.parametrize("length", [1, 7, 50, 200, 1500, 3999])
def test_with_many_answers_of_one_length_that_length_is_expected(length: int) -> None:
    assert expected(learned(length, times=2 * WINDOW)) == pytest.approx(length, rel=CLOSE, abs=1)


def test_with_two_lengths_the_expected_one_is_their_mean_and_their_shares_survive() -> None:
    forecast = learned(50, 1000, times=WINDOW)
    assert expected(forecast) == pytest.approx((50 + 1000) / 2, rel=CLOSE)
    survival = np.interp([30, 400, 1500], EDGES, forecast.curve(GROUP).survival)
    assert survival == pytest.approx([1, 0.5, 0], abs=0.05)


class TestColdStart:
    def test_a_forecast_that_has_seen_nothing_answers_all_the_same(self) -> None:
        forecast = LengthForecast()
        for cap in (0, 1, 100, 10_000_000):
            assert 0 <= expected(forecast, group_of(0, cap), cap) <= cap

    def test_nobody_runs_and_nothing_has_ended(self) -> None:
        forecast = LengthForecast()
        look(forecast, cap=1)
        assert 0 < expected(forecast, cap=1) <= 1

    def test_every_order_of_magnitude_up_to_the_longest_cap_is_as_likely(self) -> None:
        forecast = LengthForecast()
        look(forecast, cap=4096)
        survival = np.interp([8, 64, 512], EDGES, forecast.curve(GROUP).survival)
        assert survival == pytest.approx([0.75, 0.5, 0.25], abs=0.02)

    def test_a_longer_cap_lengthens_the_forecast(self) -> None:
        short, long = LengthForecast(), LengthForecast()
        look(short, cap=500)
        look(long, cap=4000)
        assert expected(long) > 3 * expected(short)

    def test_running_ones_that_have_gone_far_lengthen_the_forecast(self) -> None:
        """The first answers that end are the short ones; those that still run tell that there are others."""
        misled, warned = learned(20, times=10), learned(20, times=10)
        look(misled)
        look(warned, *[800] * 30)
        assert expected(misled) < 200
        assert expected(warned) > 2 * expected(misled)

    def test_running_ones_that_have_just_begun_change_nothing(self) -> None:
        forecast = learned(20, times=10)
        before = expected(forecast)
        look(forecast, *[0] * 50)
        assert expected(forecast) == before

    def test_each_look_counts_only_those_who_run_then(self) -> None:
        forecast = learned(20, times=10)
        before = expected(forecast)
        look(forecast, *[800] * 30)
        look(forecast)
        assert expected(forecast) == before


class TestGroups:
    def test_requests_are_alike_by_powers_of_two_of_prompt_and_cap(self) -> None:
        assert group_of(1000, 100) == group_of(513, 64)
        assert group_of(1000, 100) != group_of(1024, 100)
        assert group_of(1000, 100) != group_of(1000, 128)

    def test_a_new_group_follows_all_requests_and_then_its_own_answers(self) -> None:
        other = group_of(10_000, CAP)
        forecast = learned(300, times=WINDOW)
        assert expected(forecast, other) == pytest.approx(300, rel=CLOSE)
        steps = []
        for _ in range(4):
            teach(forecast, 30, group=other, times=100)
            steps.append(expected(forecast, other))
        assert steps == sorted(steps, reverse=True)
        assert steps[-1] == pytest.approx(30, rel=0.3)
        assert expected(forecast, GROUP) == pytest.approx(300, rel=CLOSE)

    def test_one_answer_does_not_outweigh_what_all_others_tell(self) -> None:
        other = group_of(10_000, CAP)
        forecast = learned(300, times=WINDOW)
        teach(forecast, 3, group=other)
        assert expected(forecast, other) > 200


class TestAnswersCutAtTheirCap:
    def test_they_are_not_taken_for_ends(self) -> None:
        """100 answers of 200 tokens: where that was their cap, those with a higher cap will become longer."""
        cut, ended = (learned(200, group=group_of(100, cap), cap=cap, times=100) for cap in (200, CAP))
        look(cut)
        assert expected(ended) == pytest.approx(200, rel=CLOSE)
        assert expected(cut) > 500

    def test_they_count_as_at_least_so_long(self) -> None:
        knows_nothing, cut = LengthForecast(), learned(200, group=group_of(100, 200), cap=200, times=100)
        look(knows_nothing)
        look(cut)
        assert expected(cut) > 2 * expected(knows_nothing)
        assert expected(cut, cap=200) == pytest.approx(200, rel=CLOSE)


class TestDrift:
    def test_old_answers_are_forgotten(self) -> None:
        forecast = learned(50, times=3 * WINDOW)
        teach(forecast, 400, times=3 * WINDOW)
        assert expected(forecast) == pytest.approx(400, rel=CLOSE)

    def test_a_single_outlier_is_not_a_drift(self) -> None:
        forecast = learned(50, times=3 * WINDOW)
        teach(forecast, 3000)
        assert expected(forecast) < 100

    def test_what_was_learned_shows_at_the_next_look(self) -> None:
        """Between looks a curve stays as it is: whoever compares two requests does so by the same one."""
        forecast = learned(50, times=WINDOW)
        before = forecast.curve(GROUP)
        for _ in range(WINDOW):
            forecast.learn(GROUP, 400, CAP)
        assert forecast.curve(GROUP) is before
        look(forecast)
        assert expected(forecast) > before.expected_tokens(CAP) + 100


def test_an_answer_longer_than_the_last_point_of_the_curves_counts_for_the_last() -> None:
    longest = int(EDGES[-1])
    forecast = learned(longest + 1, cap=4 * longest)
    assert expected(forecast, cap=4 * longest) <= longest


lengths_and_edges = st.integers(0, 3 * int(EDGES[-1])) | st.sampled_from(EDGES.astype(int).tolist())


@given(answers=st.lists(st.tuples(lengths_and_edges, st.booleans()), min_size=1, max_size=30))
def test_answers_are_counted_together_as_one_after_the_other(answers: list[tuple[int, bool]]) -> None:
    """Each in the bin that NumPy finds, older ones decayed by each that follows."""
    last, keep = len(EDGES) - 2, 1 - 1 / WINDOW
    ended, survived = np.zeros(last + 1), np.zeros(last + 1)
    for length, cut in answers:
        at = int(np.clip(np.searchsorted(EDGES, length, side="left") - 1, 0, last))
        ended, survived = ended * keep, survived * keep
        survived[:at] += 1
        ended[at] += not cut
    counts = _Counts.empty()
    counts.add(answers)
    assert counts.ended == pytest.approx(ended)
    assert counts.survived == pytest.approx(survived)


@given(lengths=st.lists(lengths_and_edges, min_size=1))
def test_bins_are_found_as_by_searching(lengths: list[int]) -> None:
    searched = np.clip(np.searchsorted(EDGES, lengths, side="right") - 1, 0, len(EDGES) - 2)
    assert bins_of(np.array(lengths, dtype=np.float64)).tolist() == searched.tolist()
