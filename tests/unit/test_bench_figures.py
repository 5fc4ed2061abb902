"""Percentiles, stalls, attainment and error counts, exact on recorded events."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxima_bench.exchange import Exchange, Outcome
from proxima_bench.figures import STATISTICS, distribution, error_rate, figures
from proxima_bench.runner import Run
from proxima_config.percentiles import percentile
from proxima_config.slo import SLO

TARGETS = SLO(ttft_s=2.0, stall_s=0.5)
VALUES = st.lists(st.floats(0, 1e6), min_size=1, max_size=60)
OUTCOMES = st.sampled_from(list(Outcome))


def exchange(times=(1.0, 1.25), *, sent_s=0.0, ended_s=None, outcome=Outcome.COMPLETED, **fields) -> Exchange:
    code = "" if outcome is Outcome.COMPLETED else fields.pop("code", str(outcome))
    ended_s = (times[-1] if times else sent_s) if ended_s is None else ended_s
    return Exchange(
        0, 0, 8, sent_s=sent_s, ended_s=ended_s, token_times_s=list(times), outcome=outcome, code=code, **fields
    )


@given(VALUES, st.sampled_from([0, 1, 50, 90, 95, 99, 100]))
def test_percentiles_are_numpys_and_lie_between_two_neighbours(values, share):
    ordered = sorted(values)
    found = percentile(ordered, share)
    assert found == pytest.approx(float(np.percentile(ordered, share)))
    assert ordered[0] <= found <= ordered[-1]


@given(VALUES)
def test_a_distribution_does_not_depend_on_order_and_its_percentiles_ascend(values):
    found = distribution(values)
    assert found == distribution(sorted(values, reverse=True))
    assert found["p50"] <= found["p90"] <= found["p95"] <= found["p99"] <= found["max"] == max(values)
    assert tuple(found) == STATISTICS


def test_a_distribution_of_nothing_has_no_figures():
    assert distribution([None]) == dict.fromkeys(STATISTICS)


def test_a_distribution_by_hand():
    assert distribution([4.0, None, 0.0, 1.0, 2.0, 3.0]) == {
        "mean": 2.0, "p50": 2.0, "p90": 3.6, "p95": 3.8, "p99": 3.96, "max": 4.0,
    }  # fmt: skip


@given(st.lists(st.tuples(OUTCOMES, st.floats(0.125, 4), st.floats(0, 1)), min_size=1, max_size=30))
def test_only_delivered_requests_attain_and_every_offered_one_counts(drawn):
    exchanges = [exchange((ttft, ttft + gap), outcome=outcome) for outcome, ttft, gap in drawn]
    report = figures(Run(exchanges, 0.0, 8.0), TARGETS)
    delivered = (Outcome.COMPLETED, Outcome.WITHDRAWN)
    # The recorded gap is what counts, and adding it to a time may round it.
    attained = sum(each.outcome in delivered and each.ttft_s <= 2 and each.stall_s <= 0.5 for each in exchanges)
    assert report["attainment"] == attained / len(exchanges)
    assert report["goodput_rps"] == attained / 8
    outcomes = sum(report["requests"][outcome] for outcome in Outcome)
    assert outcomes == report["requests"]["offered"] == len(exchanges)
    assert sum(report["errors"].values()) == len(exchanges) - sum(outcome in delivered for outcome, *_ in drawn)
    assert error_rate(report) == sum(report["errors"].values()) / len(exchanges)


def test_figures_of_one_request_by_hand():
    one = exchange((11.0, 11.5, 11.5, 13.5), sent_s=10.0, ended_s=14.0, usage_tokens=7)
    assert (one.ttft_s, one.e2e_s, one.stall_s, one.itl_s) == (1.0, 4.0, 2.0, [0.5, 0.0, 2.0])
    assert one.tpot_s == (4.0 - 1.0) / 6
    assert one.output_tokens == 7


def test_pieces_are_counted_where_the_server_does_not_count():
    assert exchange((1.0, 2.0, 3.0)).output_tokens == 3
    report = figures(Run([exchange((1.0, 2.0)), exchange((1.0,), usage_tokens=5)], 0.0, 2.0), TARGETS)
    assert report["tokens"] == {"output": 7, "source": "mixed", "prompt": None}
    assert report["output_tokens_per_s"] == 3.5


def test_an_answer_in_one_piece_has_no_time_per_token_and_no_stall():
    one = exchange((3.0,), streamed=False, usage_tokens=50)
    assert (one.ttft_s, one.tpot_s) == (3.0, None)
    assert figures(Run([one], 0.0, 3.0), TARGETS)["stall_s"]["max"] is None


@pytest.mark.parametrize(
    ("times", "ended_s", "attained"),
    [
        pytest.param((1.0, 1.5), 2.0, True, id="fluent_until_the_client_left"),
        pytest.param((1.0, 1.5), 2.001, False, id="silent_for_too_long_when_it_left"),
        pytest.param((), 1.0, False, id="left_before_the_first_token"),
    ],
)
def test_a_withdrawn_request_is_judged_by_what_came(times, ended_s, attained):
    assert exchange(times, ended_s=ended_s, outcome=Outcome.WITHDRAWN).attained(TARGETS) is attained


def test_latencies_are_those_of_completed_requests():
    late = exchange((9.0, 19.0), outcome=Outcome.CUT_OFF, code="cut_off")
    report = figures(Run([exchange(), late], 0.0, 20.0), TARGETS)
    assert report["ttft_s"]["max"] == 1.0
    assert report["stall_s"]["max"] == 0.25
    assert report["qps"] == 1 / 20
    assert report["errors"] == {"cut_off": 1}


def test_an_empty_run_divides_by_nothing():
    report = figures(Run([], 0.0, 0.0), TARGETS)
    assert (report["qps"], report["attainment"], report["goodput_rps"]) == (None, None, None)
    assert error_rate(report) == 0
