"""Recorded traffic: what a trace becomes when it is cut, sped up, scaled and spread."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise, takewhile
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxima_config.errors import UsageError
from proxima_config.traces import AZURE_CUT
from proxima_engine.lab.requests import PREFIX_BLOCK_TOKENS
from proxima_engine.lab.traces import Changes, read

HEADER = "arrival_s,input_tokens,output_tokens"
scales = st.floats(0.001, 1000)
rows = st.lists(
    st.tuples(st.floats(0, 1e6, width=32), st.integers(1, 20_000), st.integers(1, 5_000)), min_size=1, max_size=30
)
many_files = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def written(folder, lines, header=HEADER):
    file = folder / "mine.csv"
    file.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return file


def trace_of(folder, values):
    return written(folder, [",".join(str(value) for value in row) for row in values])


def test_columns_become_what_they_say(tmp_path):
    header = f"{HEADER},prefix_hash_ids,class,tenant,model"
    file = written(tmp_path, ["7.5,1000,40,3 4,batch,acme,llama", "", "8,1,1,,,,"], header)
    workload = read(file)
    first, second = workload.requests
    assert workload.name == "mine"
    assert workload.concurrency is None
    assert (first.arrival_s, first.input_tokens, first.output_tokens, first.cap_tokens) == (0.0, 1000, 40, 1024)
    assert (first.prefix_hash_ids, first.request_class, first.tenant) == ((3, 4), "batch", "acme")
    assert (second.arrival_s, second.prefix_hash_ids, second.request_class, second.tenant) == (0.5, (), "", "")


def test_the_shipped_trace_is_the_published_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    requests = read(Path(AZURE_CUT)).requests
    assert len(requests) == 1500
    assert requests[-1].arrival_s == 309.528
    assert fmean(request.output_tokens for request in requests) == pytest.approx(257.23, abs=0.01)


@many_files
@given(rows)
def test_requests_come_in_order_of_arrival_and_none_is_lost(tmp_path, values):
    requests = read(trace_of(tmp_path, values), Changes(cap_tokens=5_000)).requests
    assert requests[0].arrival_s == 0
    assert all(before.arrival_s <= after.arrival_s for before, after in pairwise(requests))
    assert Counter((each.input_tokens, each.output_tokens) for each in requests) == Counter(
        (prompt, answer) for _, prompt, answer in values
    )
    assert len({each.request_id for each in requests}) == len(values)


@many_files
@given(rows, st.integers(1, 40))
def test_a_cut_keeps_the_first_to_arrive(tmp_path, values, limit):
    file = trace_of(tmp_path, values)
    assert read(file, Changes(limit=limit)).requests == read(file).requests[:limit]


def test_a_cut_from_the_middle_begins_at_its_first_request(tmp_path):
    file = trace_of(tmp_path, [(second, 10 + second, 5) for second in range(9)])
    cut = read(file, Changes(skip=3, limit=2)).requests
    assert [(each.arrival_s, each.input_tokens) for each in cut] == [(0.0, 13), (1.0, 14)]
    with pytest.raises(UsageError, match="has no requests after the first 9"):
        read(file, Changes(skip=9))


@many_files
@given(rows, scales)
def test_another_rate_changes_nothing_but_arrivals(tmp_path, values, scale):
    file = trace_of(tmp_path, values)
    recorded, faster = read(file).requests, read(file, Changes(rate_scale=scale)).requests
    assert [each.arrival_s * scale for each in faster] == pytest.approx([each.arrival_s for each in recorded])
    assert [replace(each, arrival_s=0) for each in faster] == [replace(each, arrival_s=0) for each in recorded]


@many_files
@given(rows, scales, scales, st.integers(1, 10_000))
def test_scaled_lengths_are_near_their_multiple_and_within_bounds(tmp_path, values, inputs, outputs, cap):
    file = trace_of(tmp_path, values)
    changes = Changes(input_scale=inputs, output_scale=outputs, cap_tokens=cap)
    for before, after in zip(read(file, Changes(cap_tokens=5_000)).requests, read(file, changes).requests, strict=True):
        assert after.input_tokens >= 1
        assert abs(after.input_tokens - max(1, before.input_tokens * inputs)) <= 0.5
        assert 1 <= after.output_tokens <= after.cap_tokens == cap
        wanted = max(1, before.output_tokens * outputs)
        assert after.output_tokens == cap or abs(after.output_tokens - wanted) <= 0.5


@many_files
@given(rows, st.floats(0, 100), st.integers(0, 1000))
def test_jitter_stays_within_the_tick_and_follows_the_seed(tmp_path, values, jitter_s, seed):
    file = trace_of(tmp_path, values)
    recorded = {each.request_id: each.arrival_s for each in read(file).requests}
    spread = read(file, Changes(jitter_s=jitter_s, seed=seed))
    assert all(0 <= each.arrival_s - recorded[each.request_id] <= jitter_s + 1e-6 for each in spread.requests)
    assert all(before.arrival_s <= after.arrival_s for before, after in pairwise(spread.requests))
    assert read(file, Changes(jitter_s=jitter_s, seed=seed)) == spread


def test_jitter_fills_a_coarse_tick_evenly(tmp_path):
    file = trace_of(tmp_path, [(3 * (index // 1000), 10, 10) for index in range(2000)])
    spread = read(file, Changes(jitter_s=3)).requests
    assert fmean(each.arrival_s for each in spread) == pytest.approx(3, abs=0.1)
    per_second = Counter(int(each.arrival_s) for each in spread)
    assert all(per_second[second] == pytest.approx(2000 / 6, rel=0.2) for second in range(6))
    assert spread != read(file, Changes(jitter_s=3, seed=1)).requests


def shared_blocks(one, other):
    pairs = zip(one.prefix_hash_ids, other.prefix_hash_ids, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


@many_files
@given(st.integers(0, 20), st.integers(1, 3000), st.integers(1, 3000), st.floats(0.05, 5))
def test_a_scaled_prompt_shares_the_same_part_of_itself(tmp_path, blocks, own, others, scale):
    common = list(range(blocks))
    lines = []
    for number, tail in enumerate((own, others)):
        tokens = blocks * PREFIX_BLOCK_TOKENS + tail
        rest = [1000 * (number + 1) + each for each in range(math.ceil(tail / PREFIX_BLOCK_TOKENS))]
        lines.append(f"0,{tokens},1,{' '.join(str(each) for each in common + rest)}")
    file = written(tmp_path, lines, f"{HEADER},prefix_hash_ids")
    for each in read(file, Changes(input_scale=scale)).requests:
        assert len(each.prefix_hash_ids) == math.ceil(each.input_tokens / PREFIX_BLOCK_TOKENS)
    one, other = read(file, Changes(input_scale=scale)).requests
    shared_tokens = shared_blocks(one, other) * PREFIX_BLOCK_TOKENS
    scaled_common = blocks * PREFIX_BLOCK_TOKENS * scale
    assert scaled_common - PREFIX_BLOCK_TOKENS - 1 <= shared_tokens <= scaled_common + 1


def test_ids_may_end_before_the_prompt_does(tmp_path):
    file = written(tmp_path, ["0,4096,1,7 8"], f"{HEADER},prefix_hash_ids")
    assert read(file).requests[0].prefix_hash_ids == (7, 8)
    assert read(file, Changes(input_scale=0.5)).requests[0].prefix_hash_ids == (8,)
    assert read(file, Changes(input_scale=2)).requests[0].prefix_hash_ids == (7, 7, 8, 8)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        pytest.param(["x,1,1"], ":2: arrival_s must be a number of seconds, not 'x'", id="no_time"),
        pytest.param(["nan,1,1"], ":2: arrival_s must be a number of seconds, not 'nan'", id="nan"),
        pytest.param(["0,1,1", "0,0,1"], ":3: input_tokens must be a whole number from 1 up, not '0'", id="zero"),
        pytest.param(["0,1,1.5"], ":2: output_tokens must be a whole number from 1 up, not '1.5'", id="fraction"),
        pytest.param(["", "0,1"], ":3: output_tokens must be a whole number from 1 up, not ''", id="too_short"),
        pytest.param(["0,1,1,,9"], ":2: more fields than the first line has columns", id="too_long"),
        pytest.param(["0,1,1,a"], ":2: prefix_hash_ids must be whole numbers from 0 up", id="no_ids"),
        pytest.param(["0,513,1,1 2 3"], ":2: prefix_hash_ids must be at most one for each 512 tokens", id="many_ids"),
        pytest.param([], ": has no requests", id="empty"),
    ],
)
def test_a_wrong_line_is_named_with_its_rule(tmp_path, lines, message):
    file = written(tmp_path, lines, f"{HEADER},prefix_hash_ids")
    with pytest.raises(UsageError) as raised:
        read(file)
    assert str(raised.value).startswith(f"{file}{message}")


def test_a_quote_that_is_never_closed_is_an_error_of_usage(tmp_path):
    with pytest.raises(UsageError, match=r"mine\.csv:\d+: field larger"):
        read(written(tmp_path, ['0,1,"1', "x" * 200_000]))


@pytest.mark.parametrize("header", ["", "arrival_s,input_tokens", "arrival,input_tokens,output_tokens"])
def test_a_file_without_the_columns_is_no_trace(tmp_path, header):
    with pytest.raises(UsageError, match=r"mine\.csv:1: column \w+ is missing; a trace begins with arrival_s"):
        read(written(tmp_path, ["0,1,1"], header))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        pytest.param({"skip": -1}, "--skip: -1 must be a whole number from 0 up", id="skip"),
        pytest.param({"limit": 0}, "--limit: 0 must be a whole number from 1 up", id="limit"),
        pytest.param({"cap_tokens": -1}, "--max-tokens: -1 must be", id="cap"),
        pytest.param({"rate_scale": 0.0}, "--rate-scale: 0.0 must be a number from 0.001 to 1000", id="rate"),
        pytest.param({"input_scale": math.nan}, "--input-scale: nan must be", id="input"),
        pytest.param({"output_scale": math.inf}, "--output-scale: inf must be", id="output"),
        pytest.param({"jitter_s": -1.0}, "--jitter-s: -1.0 must be 0 s or more", id="jitter"),
    ],
)
def test_changes_out_of_bounds_are_refused(values, message):
    with pytest.raises(UsageError, match=message):
        Changes(**values)
