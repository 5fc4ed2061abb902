"""SLO arithmetic: what attains, and of what it is a share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxima_config.slo import SLO, attainment, gaps_s, goodput_rps, longest_stall_s

TARGETS = SLO(ttft_s=2.0, stall_s=0.25)
# Dyadic, so that differences are exact.
TIMES = st.lists(st.integers(0, 4096).map(lambda tick: tick / 16), max_size=50).map(sorted)


@pytest.mark.parametrize(
    ("delivered", "ttft_s", "stall_s", "attained"),
    [
        pytest.param(True, 2.0, 0.25, True, id="both_exactly_on_target"),
        pytest.param(True, 2.001, 0.0, False, id="first_token_late"),
        pytest.param(True, 0.1, 0.2501, False, id="stalled"),
        pytest.param(False, 0.1, 0.0, False, id="not_delivered"),
        pytest.param(True, None, 0.0, False, id="no_token"),
    ],
)
def test_attained_needs_first_token_and_gaps_in_time(delivered, ttft_s, stall_s, attained):
    assert TARGETS.attained(delivered=delivered, ttft_s=ttft_s, stall_s=stall_s) is attained


@pytest.mark.parametrize("targets", [(0, 1), (1, 0), (-1, 1), (1, float("nan"))])
def test_targets_must_be_positive(targets):
    with pytest.raises(ValueError, match="must be positive"):
        SLO(*targets)


@given(TIMES)
def test_gaps_add_up_to_the_stream_and_the_stall_is_the_longest(times):
    gaps = gaps_s(times)
    assert len(gaps) == max(0, len(times) - 1)
    assert sum(gaps) == (times[-1] - times[0] if times else 0)
    assert longest_stall_s(times) == max(gaps, default=0)


@given(st.integers(0, 100), st.integers(0, 100))
def test_attainment_is_a_share_of_offered(attained, others):
    offered = attained + others
    share = attainment(attained, offered)
    if not offered:
        assert share is None
        return
    assert share == attained / offered
    # One more refused request can only lower it.
    assert attainment(attained, offered + 1) <= share


def test_more_attained_than_offered_is_a_mistake():
    with pytest.raises(ValueError, match="3 of 2"):
        attainment(3, 2)


def test_goodput_of_nothing_is_nothing():
    assert goodput_rps(0, 0.0) is None
    assert goodput_rps(6, 4.0) == 1.5
