"""The confidence of the forecast: as many forecasts are exceeded as agreed, whatever is wrong with the curves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxima_engine.policy.calibration import HIGHEST_Z, LOWEST_Z, START_Z, TARGET, Calibration

NOBODY: frozenset[str] = frozenset()


def try_once(calibration: Calibration, upper: float, held: float) -> None:
    """One forecast that comes due in the next step, when one request holds so much."""
    calibration.begin(1, upper, {"r": held})
    calibration.step({"r"}, NOBODY)


@pytest.mark.parametrize(
    ("true_sd", "true_mean"),
    [
        pytest.param(10.0, 100.0, id="right"),
        pytest.param(20.0, 100.0, id="twice-the-spread"),
        pytest.param(6.0, 100.0, id="less-spread"),
        pytest.param(10.0, 110.0, id="more-than-expected"),
    ],
)
def test_the_share_of_exceeded_forecasts_is_the_agreed_one_although_the_forecast_is_wrong(
    true_sd: float, true_mean: float
) -> None:
    rng = np.random.default_rng(7)
    calibration = Calibration()
    for held in rng.normal(true_mean, true_sd, size=4000):
        try_once(calibration, 100.0 + calibration.z * 10.0, held)
    assert calibration.trials == 4000
    assert calibration.exceeded / calibration.trials == pytest.approx(TARGET, abs=0.01)


def test_it_follows_a_change() -> None:
    """From far too careful to far too bold: what comes after the first thousand is exceeded as often as agreed."""
    rng = np.random.default_rng(8)
    calibration = Calibration()

    def exceeded_share(sd: float, trials: int) -> float:
        before = calibration.exceeded
        for held in rng.normal(100, sd, size=trials):
            try_once(calibration, 100.0 + calibration.z * 10.0, held)
        return (calibration.exceeded - before) / trials

    exceeded_share(5.0, 3000)
    exceeded_share(18.0, 1000)
    assert exceeded_share(18.0, 2000) == pytest.approx(TARGET, abs=0.01)


@settings(deadline=None)
@given(st.lists(st.booleans(), max_size=200))
def test_confidence_stays_within_its_bounds(outcomes: list[bool]) -> None:
    calibration = Calibration()
    for exceeded in outcomes:
        before = calibration.z
        try_once(calibration, 10.0, 11.0 if exceeded else 10.0)
        assert LOWEST_Z <= calibration.z <= HIGHEST_Z
        assert calibration.z >= before if exceeded else calibration.z <= before
    assert calibration.trials == len(outcomes)
    assert calibration.exceeded == sum(outcomes)


@pytest.mark.parametrize(("held", "bound"), [(11.0, HIGHEST_Z), (9.0, LOWEST_Z)])
def test_always_wrong_or_always_right_ends_at_a_bound(held: float, bound: float) -> None:
    calibration = Calibration()
    for _ in range(2000):
        try_once(calibration, 10.0, held)
    assert calibration.z == bound


class TestATrial:
    @pytest.fixture
    def calibration(self) -> Calibration:
        calibration = Calibration()
        calibration.begin(3, 10.0, {"a": 6.0, "b": 6.0})
        return calibration

    def test_is_judged_when_its_horizon_has_come_and_not_before(self, calibration: Calibration) -> None:
        for _ in range(2):
            calibration.step({"a", "b"}, NOBODY)
            assert not calibration.is_idle
        calibration.step({"a", "b"}, NOBODY)
        assert calibration.is_idle
        assert (calibration.trials, calibration.exceeded) == (1, 1)
        assert calibration.z > START_Z

    def test_counts_only_those_who_still_run_then(self, calibration: Calibration) -> None:
        for running in ({"a", "b"}, {"a", "b", "new"}, {"b", "new"}):
            calibration.step(running, NOBODY)
        assert (calibration.trials, calibration.exceeded) == (1, 0)
        assert calibration.z < START_Z

    def test_is_exceeded_as_soon_as_one_of_it_yields(self, calibration: Calibration) -> None:
        """It did not end, so nobody knows what all of them would have held; that they did not fit is known."""
        calibration.step({"a"}, {"b"})
        assert calibration.is_idle
        assert (calibration.trials, calibration.exceeded) == (1, 1)

    def test_does_not_hang_on_others_who_yield(self, calibration: Calibration) -> None:
        calibration.step({"a", "b"}, {"new"})
        assert not calibration.is_idle
        assert calibration.trials == 0

    def test_is_judged_once(self, calibration: Calibration) -> None:
        for _ in range(10):
            calibration.step({"a", "b"}, NOBODY)
        assert calibration.trials == 1

    def test_that_nobody_was_part_of_is_not_exceeded(self) -> None:
        calibration = Calibration()
        calibration.begin(1, 0.0, {})
        calibration.step(NOBODY, NOBODY)
        assert (calibration.trials, calibration.exceeded) == (1, 0)


def test_without_a_forecast_steps_change_nothing() -> None:
    calibration = Calibration()
    for _ in range(10):
        calibration.step({"a"}, {"b"})
    assert calibration.is_idle
    assert (calibration.z, calibration.trials, calibration.exceeded) == (START_Z, 0, 0)
