"""Figures of an arm, exact on recorded requests."""

from __future__ import annotations

import pytest

from proxima_config.slo import SLO
from proxima_engine.lab.experiment import last_load_above
from proxima_engine.lab.figures import figures
from proxima_engine.lab.requests import LabRequest
from proxima_engine.lab.simulate import Record, Run

TARGETS = SLO(ttft_s=2.0, stall_s=0.5)


def record(sent_s, *token_times_s, refused=False):
    made = Record(LabRequest("r", sent_s, 10, len(token_times_s) or 1, 100), sent_s, refused=refused)
    for time_s in token_times_s:
        made.token(time_s)
    made.ended_s = token_times_s[-1] if token_times_s else None
    return made


def test_every_figure_follows_from_the_records():
    good, late, stalled = record(1.0, 2.0, 2.5), record(2.0, 5.0, 5.25), record(3.0, 4.0, 6.0)
    run = Run([good, late, stalled, record(4.0, refused=True)], end_s=6.0, last_arrival_s=4.0, steps=10)
    run.tokens_while_arriving, run.busy_s, run.running_sum_s, run.pool_use_sum_s = 3, 4.0, 8.0, 2.0
    found = figures(run, TARGETS)
    assert found["requests"] == 4
    assert found["refused"] == 1
    assert found["attainment"] == 0.25
    assert found["goodput_rps"] == pytest.approx(1 / 5)
    assert found["qps"] == pytest.approx(3 / 5)
    assert found["output_tokens_per_s"] == pytest.approx(6 / 5)
    assert found["output_tokens_per_s_arriving"] == pytest.approx(3 / 3)
    assert found["ttft_p50_s"] == 1.0
    assert found["ttft_p99_s"] == pytest.approx(2.96)
    assert found["e2e_mean_s"] == pytest.approx((1.5 + 3.25 + 3.0) / 3)
    assert found["stall_max_s"] == 2.0
    assert found["running_mean"] == 2.0
    assert found["pool_use_mean"] == 0.5
    assert found["schedule_us_mean"] is None


def test_real_time_is_reported_only_when_asked_for():
    run = Run([record(0.0, 1.0)], end_s=1.0, steps=4, wall_s=0.002)
    assert figures(run, TARGETS, with_wall_time=True)["schedule_us_mean"] == pytest.approx(500)


@pytest.mark.parametrize(
    ("attained", "load"),
    [
        pytest.param([1.0, 0.95, 0.85], 1.5, id="between_two"),
        pytest.param([1.0, 0.9, 0.9], 2.0, id="never_below"),
        pytest.param([0.8, 0.7, 0.6], None, id="below_from_the_start"),
        pytest.param([1.0, 0.8, 0.95], 0.75, id="the_first_time_counts"),
    ],
)
def test_the_load_that_still_attains_90_percent(attained, load):
    assert last_load_above(list(zip([0.5, 1.0, 2.0], attained, strict=True)), 0.9) == pytest.approx(load)
