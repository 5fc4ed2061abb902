"""Limits of one key: buckets, reservations, headers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxima_config.api_keys import ApiKey
from proxima_server.door.limits import Bucket, Usage, duration

HASH = "a" * 64


def key(**limits: int) -> ApiKey:
    return ApiKey(name="k", sha256=HASH, **limits)


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 20)), max_size=60), st.integers(1, 100))
def test_no_minute_gets_more_than_twice_the_limit_and_no_long_time_more_than_its_share(asks, capacity):
    """A full bucket plus what flows in: the bound of every token bucket."""
    bucket, now_s, taken = Bucket.full(capacity, 0), 0.0, 0
    for pause_s, units in asks:
        now_s += pause_s
        if bucket.wait_s(now_s, units) == 0:
            bucket.take(now_s, units)
            taken += units
        assert taken <= capacity * (1 + now_s / 60) + 1e-6
        assert 0 <= bucket.level(now_s) <= capacity


@given(st.integers(1, 1000), st.integers(1, 1000), st.floats(0, 100))
def test_who_comes_back_when_told_gets_in(capacity, units, pause_s):
    bucket = Bucket.full(capacity, 0)
    bucket.take(0, capacity)
    wait_s = bucket.wait_s(pause_s, units)
    if units > capacity:
        assert wait_s == math.inf
    else:
        assert bucket.wait_s(pause_s + wait_s, units) == pytest.approx(0, abs=1e-6)


def test_requests_per_minute():
    usage = Usage(key(requests_per_min=2), 0)
    assert usage.enter(0, 1) is None
    assert usage.enter(0, 1) is None
    exceeded = usage.enter(0, 1)
    assert exceeded is not None
    assert (exceeded.limit, exceeded.allowed, exceeded.wait_s) == ("requests_per_min", 2, 30)
    assert usage.enter(30, 1) is None


def test_a_reservation_is_settled_with_what_was_used():
    usage = Usage(key(tokens_per_min=100), 0)
    assert usage.enter(0, 80) is None
    assert usage.enter(0, 80) is not None
    usage.settle(0, reserved=80, used=10)
    assert usage.headers(0)["x-ratelimit-remaining-tokens"] == "90"


def test_more_used_than_reserved_is_a_debt():
    usage = Usage(key(tokens_per_min=60), 0)
    assert usage.enter(0, 10) is None
    usage.settle(0, reserved=10, used=120)
    assert usage.headers(0)["x-ratelimit-remaining-tokens"] == "0"
    exceeded = usage.enter(0, 1)
    assert exceeded is not None
    assert exceeded.wait_s == pytest.approx(61)


def test_a_request_larger_than_the_limit_never_fits():
    exceeded = Usage(key(tokens_per_min=100), 0).enter(0, 101)
    assert exceeded is not None
    assert exceeded.wait_s == math.inf


def test_a_refusal_by_one_limit_takes_nothing_from_another():
    usage = Usage(key(requests_per_min=5, tokens_per_min=10), 0)
    assert usage.enter(0, 10) is None
    assert usage.enter(0, 10) is not None
    assert usage.headers(0)["x-ratelimit-remaining-requests"] == "4"


def test_requests_at_once():
    usage = Usage(key(max_concurrent=1), 0)
    assert usage.enter(0, 1) is None
    exceeded = usage.enter(0, 1)
    assert exceeded is not None
    assert (exceeded.limit, exceeded.wait_s) == ("concurrent", None)
    usage.settle(0, 1, 1)
    assert usage.enter(0, 1) is None


def test_changed_limits_keep_what_runs():
    usage = Usage(key(max_concurrent=1), 0)
    usage.enter(0, 1)
    usage.follow(key(max_concurrent=2, requests_per_min=10), 0)
    assert usage.enter(0, 1) is None
    assert usage.enter(0, 1) is not None


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0ms"), (0.006, "6ms"), (1, "1s"), (1.5, "1.5s"), (60, "1m0s"), (360.25, "6m0.25s")]
)
def test_durations_as_openai_writes_them(seconds, shown):
    assert duration(seconds) == shown
