"""Made-up traffic: each kind is what it is called, and the same for the same seed."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from itertools import pairwise
from statistics import fmean, pvariance

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxima_config.errors import UsageError
from proxima_engine.lab.generators import GENERATORS, parse
from proxima_engine.lab.requests import PREFIX_BLOCK_TOKENS

kinds = st.sampled_from(sorted(GENERATORS))
counts = st.integers(1, 60)
seeds = st.integers(0, 2**32)


def gaps_s(workload):
    return [after.arrival_s - before.arrival_s for before, after in pairwise(workload.requests)]


@given(kinds, counts, seeds)
def test_the_same_seed_gives_the_same_workload(kind, requests, seed):
    text = f"{kind}:requests={requests}"
    assert parse(text, seed=seed) == parse(text, seed=seed)


@pytest.mark.parametrize("kind", sorted(set(GENERATORS) - {"same-length-wave"}))
def test_another_seed_gives_another_workload(kind):
    assert parse(kind, seed=1).requests != parse(kind, seed=2).requests


@given(kinds, counts, seeds, st.integers(1, 2000))
def test_requests_are_in_order_and_within_bounds(kind, requests, seed, cap):
    workload = parse(f"{kind}:requests={requests}", seed=seed, cap_tokens=cap)
    assert len({each.request_id for each in workload.requests}) == requests
    assert all(gap_s >= 0 for gap_s in gaps_s(workload))
    for each in workload.requests:
        assert each.arrival_s >= 0
        assert each.input_tokens >= 1
        assert 1 <= each.output_tokens <= each.cap_tokens <= cap
        assert len(each.prefix_hash_ids) * PREFIX_BLOCK_TOKENS <= each.input_tokens


@given(kinds, seeds, st.integers(1, 40), st.integers(0, 40))
def test_a_longer_run_begins_like_a_shorter_one(kind, seed, requests, more):
    """Load is compared over its length, so only what is placed relative to the end may differ."""
    if kind in ("giant-head", "drift"):
        return
    shorter = parse(f"{kind}:requests={requests}", seed=seed)
    longer = parse(f"{kind}:requests={requests + more}", seed=seed)
    assert longer.requests[:requests] == shorter.requests


@given(st.sampled_from(["poisson", "gamma", "bimodal", "shared-prefix", "giant-head", "far-cap", "drift"]), seeds)
def test_another_rate_leaves_lengths_as_they_are(kind, seed):
    slow, fast = (parse(f"{kind}:requests=50,rate={rate}", seed=seed).requests for rate in (2, 8))
    assert [each.arrival_s for each in fast] == pytest.approx([each.arrival_s / 4 for each in slow])
    assert [(each.input_tokens, each.output_tokens, each.prefix_hash_ids) for each in fast] == [
        (each.input_tokens, each.output_tokens, each.prefix_hash_ids) for each in slow
    ]


@pytest.mark.parametrize(
    ("text", "variation"),
    [
        pytest.param("poisson", 1.0, id="poisson"),
        pytest.param("gamma:burstiness=0.25", 4.0, id="gamma_bursts"),
        pytest.param("gamma:burstiness=4", 0.25, id="gamma_regular"),
    ],
)
def test_open_loops_have_their_mean_rate_and_burstiness(text, variation):
    gaps = gaps_s(parse(text + ("," if ":" in text else ":") + "rate=5,requests=20000"))
    assert fmean(gaps) == pytest.approx(0.2, rel=0.05)
    assert pvariance(gaps) / fmean(gaps) ** 2 == pytest.approx(variation, rel=0.15)


def test_a_closed_loop_has_its_number_in_flight():
    workload = parse("closed:concurrency=7,requests=20")
    assert (workload.concurrency, len(workload.requests)) == (7, 20)
    assert all(parse(kind).concurrency is None for kind in GENERATORS if kind != "closed")


def test_bimodal_answers_are_of_two_lengths_in_their_shares():
    workload = parse("bimodal:output=10,long=900,long-share=0.3,requests=5000")
    found = Counter(each.output_tokens for each in workload.requests)
    assert set(found) == {10, 900}
    assert found[900] / 5000 == pytest.approx(0.3, abs=0.03)


def test_shared_prefixes_are_as_many_as_said_and_on_top_of_the_prompt():
    workload = parse("shared-prefix:prefixes=3,prefix=1024,input=10,requests=200")
    assert {each.input_tokens for each in workload.requests} == {1034}
    beginnings = {each.prefix_hash_ids for each in workload.requests}
    assert len(beginnings) == 3
    assert len({hash_id for ids in beginnings for hash_id in ids}) == 3 * 2


@given(st.integers(1000, 100_000), st.floats(0.5, 0.95), counts)
def test_one_giant_fits_the_pool_with_its_longest_answer(pool, share, requests):
    workload = parse(f"giant-head:requests={requests},pool-share={share}", pool_tokens=pool)
    giant = workload.requests[requests // 10]
    assert giant.input_tokens == int(pool * share)
    assert giant.input_tokens + giant.cap_tokens <= pool
    others = [each for each in workload.requests if each is not giant]
    assert all(each.input_tokens <= 512 and each.cap_tokens == 1024 for each in others)


@pytest.mark.parametrize("text", ["same-length-wave", "same-length-wave:input=1-5000,output=1-900"])
def test_a_wave_is_all_alike_and_all_at_once(text):
    requests = parse(text).requests
    assert len(requests) == 200
    assert len({(each.arrival_s, each.input_tokens, each.output_tokens, each.cap_tokens) for each in requests}) == 1


def test_a_far_cap_is_far_and_is_the_callers_if_the_caller_says():
    assert all(each.cap_tokens >= 100 * each.output_tokens for each in parse("far-cap").requests)
    assert {each.cap_tokens for each in parse("far-cap", cap_tokens=500).requests} == {500}
    assert {each.cap_tokens for each in parse("far-cap:cap=600", cap_tokens=500).requests} == {600}


@pytest.mark.parametrize("growth", [4, 0.25])
def test_drifting_answers_end_at_their_multiple(growth):
    answers = [each.output_tokens for each in parse(f"drift:output=200,growth={growth},requests=101").requests]
    assert (answers[0], answers[50], answers[-1]) == (200, 200 * (1 + growth) / 2, 200 * growth)
    assert answers == sorted(answers, reverse=growth < 1)


def test_a_text_names_its_workload_and_fills_every_key():
    workload = parse(" poisson:rate=4, requests=9,input=32-64,output=lognormal(64, 1, 90),cap=80,seed=3 ", seed=5)
    assert workload.name == "poisson:rate=4, requests=9,input=32-64,output=lognormal(64, 1, 90),cap=80,seed=3"
    assert len(workload.requests) == 9
    assert all(32 <= each.input_tokens <= 64 and each.output_tokens <= 80 for each in workload.requests)
    assert (
        workload.requests == parse("poisson:requests=9,input=32-64,output=lognormal(64,1,90),cap=80", seed=3).requests
    )


@pytest.mark.parametrize("kind", GENERATORS)
def test_every_key_of_every_kind_can_be_written(kind):
    keys = parse_error(f"{kind}:qqqqqq=1").removeprefix(f"{kind} has no key 'qqqqqq'; there are ").split(", ")
    assert len(keys) == len(fields(GENERATORS[kind]))
    values = {"prefix": "512", "long-share": "0.5", "pool-share": "0.5"}
    text = ",".join(f"{key}={values.get(key, '9')}" for key in keys)
    assert len(parse(f"{kind}:{text}").requests) == 9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("poison", "no workload is called 'poison'; did you mean poisson?", id="kind"),
        pytest.param("", "no workload is called ''; there are poisson, gamma", id="nothing"),
        pytest.param("gamma:rat=3", "gamma has no key 'rat'; did you mean rate?", id="key"),
        pytest.param("closed:rate=3", "closed has no key 'rate'", id="key_of_others"),
        pytest.param("gamma:rate", "gamma: 'rate' must be key=value", id="no_value"),
        pytest.param("gamma:rate=0", "gamma: rate: '0' must be a number from 0.0001 to 10000", id="no_rate"),
        pytest.param("gamma:rate=nan", "gamma: rate: 'nan' must be a number", id="nan"),
        pytest.param("gamma:requests=0", "gamma: requests: '0' must be a whole number from 1 up", id="no_requests"),
        pytest.param("gamma:input=x", "gamma: input: 'x' is no token count; write 128, 32-512", id="lengths"),
        pytest.param("shared-prefix:prefix=600", "prefix: '600' must be a whole number from 512 up that", id="step"),
        pytest.param("giant-head:pool-share=1", "pool-share: '1' must be a number from 0.01 to 0.95", id="whole_pool"),
    ],
)
def test_a_wrong_text_is_named_with_what_is_possible(text, message):
    assert message in parse_error(text)


def parse_error(text):
    with pytest.raises(UsageError) as raised:
        parse(text)
    return str(raised.value)
