"""Arrivals, prompts and presets: what would be sent, before anything is."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pvariance

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxima_bench import arrivals, load_flags, loads, workload
from proxima_bench.arrivals import arrivals_s
from proxima_bench.tokens import WORDS, learn
from proxima_bench.workload import build
from proxima_config.errors import ConfigError, UsageError

MANY = 20_000


def rng() -> random.Random:
    return random.Random(5)


async def nobody_counts(_):
    return None


async def words_count(body):
    """A tokenizer of one token a word; a chat message costs nine more."""
    messages = body.get("messages")
    return len(messages[0]["content"].split()) + 9 if messages else len(body["prompt"].split())


async def letters_count(body):
    messages = body.get("messages")
    return len(messages[0]["content"]) + 9 if messages else len(body["prompt"])


def drawn(count=nobody_counts, **load):
    return asyncio.run(build(loads.build({"warmup": 0, **load}), count))


def texts(workload):
    return [turn.messages[-1]["content"] for each in workload.measured for turn in each.turns]


OPEN = [
    pytest.param(arrivals.Poisson(rate_rps=4), 1.0, id="poisson"),
    pytest.param(arrivals.Gamma(rate_rps=4, burstiness=0.25), 4.0, id="gamma_bursts"),
    pytest.param(arrivals.Gamma(rate_rps=4, burstiness=4), 0.25, id="gamma_regular"),
    pytest.param(arrivals.Constant(rate_rps=4), 0.0, id="constant"),
]


@pytest.mark.parametrize(("shape", "variation"), OPEN)
def test_open_loops_have_their_rate_and_their_burstiness(shape, variation):
    times = arrivals_s(shape, [None] * MANY, rng())
    gaps = [after - before for before, after in pairwise(times)]
    assert fmean(gaps) == pytest.approx(0.25, rel=0.05)
    assert pvariance(gaps) / fmean(gaps) ** 2 == pytest.approx(variation, rel=0.15, abs=1e-9)


def test_a_ramp_reaches_its_rate_and_stays():
    times = arrivals_s(arrivals.Ramp(from_rps=10, to_rps=50, over_s=100), [None] * 8000, rng())
    assert times == sorted(times)

    def rate(start_s, end_s):
        return sum(start_s <= time_s < end_s for time_s in times) / (end_s - start_s)

    assert rate(0, 10) == pytest.approx(12, rel=0.2)
    assert rate(45, 55) == pytest.approx(30, rel=0.15)
    assert rate(110, 190) == pytest.approx(50, rel=0.1)


@given(st.floats(0, 50), st.floats(0.125, 50), st.floats(0.5, 100), st.lists(st.floats(0, 500), max_size=20))
@example(0.0, 1.0, 4.0, [0.0, 5e-324])
def test_a_ramp_never_goes_back_in_time(start, end, over_s, expected):
    ramp = arrivals.Ramp(from_rps=start, to_rps=end, over_s=over_s)
    times = [ramp._time_s(each) for each in sorted(expected)]
    assert all(before <= after * (1 + 1e-9) for before, after in pairwise(times))
    assert all(time_s >= 0 for time_s in times)


def test_a_replay_keeps_the_gaps_and_scales_the_rate(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n10.0,100,40\n12.0,50,20\n16.0,10,1\n")
    load = {"requests": 3, "prompts": {"kind": "csv", "path": trace, "input_scale": 0.5, "output_scale": 0.25}}

    def times(**shape):
        workload = drawn(words_count, **load, shape={"kind": "trace", **shape})
        return [each.arrival_s for each in workload.measured]

    assert times() == [0.0, 2.0, 6.0]
    assert times(rate_scale=2) == [0.0, 1.0, 3.0]
    assert times(rate_rps=0.5) == pytest.approx([0.0, 4 / 3, 4.0])
    workload = drawn(words_count, **load, api="completions")
    assert [len(text.split()) for text in texts(workload)] == [50, 25, 5]
    assert [each.turns[0].output_tokens for each in workload.measured] == [10, 5, 1]


def test_a_replay_needs_enough_arrivals(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("input_tokens,output_tokens\n100,40\n")
    load = {"shape": {"kind": "trace"}, "prompts": {"kind": "csv", "path": trace}}
    with pytest.raises(UsageError, match="has 1 requests, fewer than the 2"):
        drawn(**load, requests=2)
    with pytest.raises(UsageError, match="needs prompts with arrival times"):
        drawn(**load, requests=1)
    with pytest.raises(ConfigError, match="needs prompts from a CSV trace"):
        drawn(shape={"kind": "trace"})


def test_a_faster_server_is_overloaded_for_as_long_as_a_slow_one(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text("arrival_s,input_tokens,output_tokens\n" + "".join(f"{each},3,4\n" for each in range(500)))
    load = loads.build(
        {"requests": 20, "arrivals_s": 30, "shape": {"kind": "trace"}, "prompts": {"kind": "csv", "path": file}}
    )
    assert {rate: workload.at_rate(load, rate).requests for rate in (0.5, 10, 1000)} == {0.5: 20, 10: 300, 1000: 500}
    arrivals = [each.arrival_s for each in asyncio.run(build(workload.at_rate(load, 10), nobody_counts)).measured]
    assert arrivals[-1] == pytest.approx(30, rel=0.01)


def test_a_number_of_requests_that_was_asked_for_stays(tmp_path):
    parser = argparse.ArgumentParser()
    load_flags.add_arguments(parser)
    load = load_flags.load_from(parser.parse_args(["--preset", "overload", "--requests", "7"]))
    assert workload.at_rate(load, 1000.0).requests == 7


def test_synthetic_prompts_have_exactly_their_length_where_the_server_counts():
    workload = drawn(words_count, requests=30, prompts={"kind": "synthetic", "input_tokens": "16-64"})
    assert workload.vocabulary.exact
    lengths_seen = [asyncio.run(words_count({"messages": [{"content": text}]})) for text in texts(workload)]
    assert all(16 <= length <= 64 for length in lengths_seen)
    assert len(set(lengths_seen)) > 10
    assert len(set(texts(workload))) == 30


def test_words_that_are_several_tokens_are_left_out():
    async def count(body):
        text = body.get("prompt") or body["messages"][0]["content"]
        return sum(2 if word.startswith("t") else 1 for word in text.split())

    vocabulary = asyncio.run(learn(count, loads.Api.COMPLETIONS))
    assert set(vocabulary.words) == {word for word in WORDS if not word.startswith("t")}
    assert vocabulary.exact


def test_a_vocabulary_of_letters_is_met_on_average_and_said_to_be_approximate():
    workload = drawn(letters_count, requests=40, prompts={"kind": "synthetic", "input_tokens": 400})
    assert not workload.vocabulary.exact
    assert fmean(len(text) + 9 for text in texts(workload)) == pytest.approx(400, rel=0.05)


def test_prefixes_are_shared_and_the_rest_is_not():
    prompts = {"kind": "synthetic", "input_tokens": 15, "prefix_tokens": 40, "prefixes": 3}
    words = [text.split() for text in texts(drawn(words_count, requests=12, prompts=prompts))]
    assert {len(each) for each in words} == {40 + 15 - 9}
    assert len({tuple(each[:40]) for each in words}) == 3
    assert len({tuple(each[40:]) for each in words}) == 12


def test_sharegpt_files_give_prompts_turns_and_lengths(tmp_path):
    said = [("human", "one two"), ("gpt", "a b c"), ("human", "three"), ("gpt", "d"), ("human", "unanswered")]
    entries = [
        {"conversations": [{"from": "gpt", "value": "begins wrongly"}, {"from": "human", "value": "x"}]},
        {"conversations": [{"from": who, "value": text} for who, text in said]},
        {"conversations": [{"from": "human", "value": "w " * 2000}, {"from": "gpt", "value": "too long"}]},
    ]
    file = tmp_path / "sharegpt.json"
    file.write_text(json.dumps(entries))
    workload = drawn(words_count, requests=2, prompts={"kind": "sharegpt", "path": file, "turns": 5})
    # One usable conversation, sent twice.
    assert texts(workload) == ["one two", "three"] * 2
    assert [turn.output_tokens for turn in workload.measured[0].turns] == [3, 1]


def test_jsonl_files_give_prompts_or_messages(tmp_path):
    file = tmp_path / "prompts.jsonl"
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}]
    file.write_text(
        json.dumps({"prompt": "hi", "output_tokens": 3, "arrival_s": 1}) + "\n\n" + json.dumps({"messages": messages})
    )
    workload = drawn(requests=2, prompts={"kind": "jsonl", "path": file, "output_tokens": 9})
    first, second = (each.turns[0] for each in workload.measured)
    assert (first.messages, first.output_tokens) == (({"role": "user", "content": "hi"},), 3)
    assert (list(second.messages), second.output_tokens) == (messages, 9)


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        pytest.param("csv", "arrival_s,input_tokens\n0,1\n", r":2: not a trace", id="missing_column"),
        pytest.param("csv", "input_tokens,output_tokens\n1,x\n", r":2: not a trace", id="no_number"),
        pytest.param("csv", "input_tokens,output_tokens\n", "no usable prompts", id="empty_trace"),
        pytest.param("jsonl", '{"text": "x"}', ":1: must be an object with either", id="neither"),
        pytest.param("jsonl", '{"prompt": "x", "output_tokens": 0}', ":1: output_tokens must be", id="no_length"),
        pytest.param("jsonl", "{", ":1: not valid JSON", id="broken_line"),
        pytest.param("sharegpt", "[]", "no usable prompts", id="empty_sharegpt"),
        pytest.param("sharegpt", "[", "not valid JSON", id="broken_file"),
    ],
)
def test_a_file_that_is_wrong_is_named_with_its_line(tmp_path, kind, text, message):
    file = tmp_path / "file"
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        drawn(prompts={"kind": kind, "path": file})


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        drawn(prompts={"kind": "jsonl", "path": tmp_path / "none"})


def test_the_presets_are_what_they_are_called():
    presets = loads.presets()
    assert list(presets) == [
        "article", "throughput", "out-of-the-box", "pressure", "pressure-mixed", "overload", "no-pressure",
        "interactive", "long-tail", "shared-prefix", "multi-turn",
    ]  # fmt: skip
    article = presets["article"]
    assert (article.requests, article.shape.concurrency, article.temperature) == (200, 50, 0.7)
    assert {turn.output_tokens for each in drawn_preset(article).measured for turn in each.turns} == {128}
    for name in ("pressure", "pressure-mixed"):
        engine = presets[name].engine
        assert (engine["num_gpu_blocks_override"], engine["block_size"]) == (192, 32)
    lengths_seen = {each.turns[0].output_tokens for each in drawn_preset(presets["pressure-mixed"]).measured}
    assert lengths_seen == {64, 512}
    assert presets["overload"].saturation_multiples == (0.8, 1.2, 1.5)
    # All chats together have twice as many tokens as there is room for, half way through.
    chats = drawn_preset(presets["multi-turn"]).measured
    tokens = sum(256 + len(chat.turns) / 2 * (32 + 32) for chat in chats)
    engine = presets["multi-turn"].engine
    assert tokens / (engine["num_gpu_blocks_override"] * engine["block_size"]) == pytest.approx(2, abs=0.3)
    # Blind, but for the procedure of the original description, which named its number of tokens, and for servers that
    # have nothing but their own defaults.
    assert {name for name, load in presets.items() if load.lengths != "forced"} == {"article", "out-of-the-box"}


def drawn_preset(load):
    return asyncio.run(build(load, nobody_counts))


@pytest.mark.parametrize("name", loads.presets())
def test_no_answer_of_a_blind_preset_is_longer_than_its_cap(name):
    load = loads.presets()[name]
    for each in (*(workload := drawn_preset(load)).warmup, *workload.measured):
        assert all(1 <= turn.output_tokens <= load.cap_tokens for turn in each.turns)


def test_the_shipped_trace_is_the_published_one():
    load = loads.build({"requests": 1500, "warmup": 0, "prompts": {"kind": "csv"}, "shape": {"kind": "trace"}})
    workload = drawn_preset(load)
    assert fmean(each.turns[0].output_tokens for each in workload.measured) == pytest.approx(257.23, abs=0.01)
    assert workload.measured[-1].arrival_s == 309.528


def test_a_preset_that_is_mistyped():
    with pytest.raises(UsageError, match="did you mean pressure"):
        loads.preset("presure")


def test_a_wrong_value_is_named():
    with pytest.raises(ConfigError, match=r"requests: .*greater than or equal to 1 \(given: 0\)"):
        loads.build({"requests": 0})


def test_the_docs_name_every_preset():
    page = (Path(__file__).resolve().parents[2] / "docs" / "benchmarking.md").read_text(encoding="utf-8")
    assert [name for name in loads.presets() if f"| `{name}` |" not in page] == []
