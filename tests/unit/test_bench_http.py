"""The load generator against a scripted server, in virtual time: every figure and every kind of failure exact."""

from __future__ import annotations

import asyncio
import io
import json
from functools import partial

import aiohttp
import pytest
from rich.console import Console
from scripted_server import HANG, Script, ScriptedServer, measure
from virtual_time import run

from proxima_bench import live, loads
from proxima_bench.measurement import session
from proxima_bench.target import Target
from proxima_config.errors import ProximaError
from proxima_config.forced_length import FIELD

STEADY = Script((0.5, 0.25, 0.25, 0.25))


@pytest.fixture
def bench(tmp_path):
    """Measures a script and returns (report, rows, server)."""

    def bench(script, *, counter=None, metrics=None, **load):
        server = ScriptedServer(script if callable(script) else lambda *_: script, counter, metrics)
        values = {"warmup": 0, "shape": {"kind": "closed", "concurrency": 1}, "lengths": "natural", **load}
        measurement = run(measure(server, loads.build(values), tmp_path))
        return measurement.report, measurement.rows, server

    return bench


def outcomes(rows):
    return [(row["outcome"], row["code"]) for row in rows]


def test_every_figure_of_a_closed_loop_is_exact(bench):
    """Four requests, two at once: first tokens after 0.5, 1, 2 and 4 s, then gaps of 0.25 s with one of 1 s."""
    firsts = (0.5, 1.0, 2.0, 4.0)

    def script(number, _):
        return Script((firsts[number], 0.25, 1.0 if number == 1 else 0.25, 0.25))

    report, _, _ = bench(script, requests=4, shape={"kind": "closed", "concurrency": 2}, slo_ttft_s=2, slo_stall_s=0.5)
    # First lane: 0 to 1.25 and then 2 s more of the third; second lane: 0 to 2.5, then the fourth until 7.25.
    assert report["duration_s"] == 7.25
    assert report["qps"] == 4 / 7.25
    assert report["output_tokens_per_s"] == 16 / 7.25
    assert report["ttft_s"] == {
        "mean": 1.875, "p50": 1.5, "p90": pytest.approx(3.4), "p95": pytest.approx(3.7), "p99": pytest.approx(3.94),
        "max": 4.0,
    }  # fmt: skip
    assert report["itl_s"]["mean"] == (11 * 0.25 + 1.0) / 12
    assert report["itl_s"]["p50"] == 0.25
    assert report["tpot_s"] == {
        "mean": 0.3125, "p50": 0.25, "p90": pytest.approx(0.425), "p95": pytest.approx(0.4625),
        "p99": pytest.approx(0.4925), "max": 0.5,
    }  # fmt: skip
    assert report["e2e_s"]["max"] == 4.75
    assert (report["stall_s"]["p50"], report["stall_s"]["max"]) == (0.25, 1.0)
    # The second stalled, the fourth began too late.
    assert report["attainment"] == 0.5
    assert report["goodput_rps"] == 2 / 7.25
    assert report["errors"] == {}
    assert report["tokens"] == {"output": 16, "source": "usage", "prompt": 28}


def test_an_open_loop_does_not_wait_for_answers(bench):
    report, rows, _ = bench(Script((8.0,)), requests=5, shape={"kind": "constant", "rate_rps": 2})
    assert [row["sent_s"] for row in rows] == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert report["duration_s"] == 10.0
    assert report["client"]["sent_late_s"]["max"] == 0.0
    assert report["client"]["lag_s"]["max"] == 0.0


FAILURES = [
    pytest.param(Script(status=429), {}, "refused", "http_429", id="too_many_requests"),
    pytest.param(Script(status=503), {}, "refused", "http_503", id="unavailable"),
    pytest.param(Script(status=500), {}, "failed", "http_500", id="internal_error"),
    pytest.param(Script((0.5, 0.5), error="worker broke"), {}, "failed", "error_event", id="error_event"),
    pytest.param(Script((0.5, 0.5), drop=True, end=False), {}, "cut_off", "cut_off", id="connection_dropped"),
    pytest.param(Script((), drop=True), {"stream": False}, "cut_off", "cut_off", id="dropped_before_the_answer"),
    pytest.param(Script((0.5, 0.5), end=False), {}, "cut_off", "cut_off", id="ended_without_done_or_reason"),
    pytest.param(Script((0.5, HANG)), {"timeout_s": 4}, "timed_out", "timeout", id="hangs_in_the_stream"),
    pytest.param(Script((HANG,)), {"timeout_s": 4, "stream": False}, "timed_out", "timeout", id="never_answers"),
    pytest.param(Script(()), {}, "failed", "empty", id="no_token"),
    pytest.param(Script(pieces=({"choices": "?"},)), {}, "failed", "bad_answer", id="not_the_protocol"),
]


@pytest.mark.parametrize(("failure", "load", "outcome", "code"), FAILURES)
def test_each_way_to_fail_has_its_outcome_and_spoils_nothing_else(bench, failure, load, outcome, code):
    """Every third request fails. The others are measured as if nothing had happened."""

    def script(number, _):
        return failure if number % 3 == 1 else STEADY

    report, rows, _ = bench(script, requests=6, slo_ttft_s=2, slo_stall_s=0.25, **load)
    good, bad = ("completed", ""), (outcome, code)
    assert outcomes(rows) == [good, bad, good, good, bad, good]
    assert report["errors"] == {code: 2}
    assert report["attainment"] == 4 / 6
    assert report["e2e_s"] == dict.fromkeys(report["e2e_s"], 1.25)


def test_a_timeout_ends_exactly_when_it_should(bench):
    _, rows, server = bench(Script((0.5, HANG)), requests=1, timeout_s=4)
    assert rows[0]["e2e_s"] == 4.0
    assert server.left == [0]


def test_the_message_of_an_error_is_in_the_log(bench):
    _, rows, _ = bench(Script(status=429, error="queue is full"), requests=1)
    assert rows[0]["detail"] == "queue is full"


def test_nobody_listening(tmp_path):
    async def refused():
        connector = aiohttp.UnixConnector(str(tmp_path / "nobody"))
        target = Target("http://nobody", model="m")
        clock = asyncio.get_running_loop().time
        load = loads.build({"requests": 2, "warmup": 0, "prompts": {"kind": "text", "text": "hi"}})
        async with session(target, load, clock=clock, connector=connector) as connected:
            return await connected.measure()

    measurement = run(refused())
    assert outcomes(measurement.rows) == [("failed", "connect")] * 2
    assert measurement.report["server"] is None


def test_a_warm_up_that_gets_no_answer_ends_the_measurement_with_its_cause(bench):
    with pytest.raises(ProximaError, match="none of the warm-up requests: http_503 loading"):
        bench(Script(status=503, error="loading"), requests=2, warmup=3)


def test_the_warm_up_is_in_no_figure_and_has_other_prompts(bench):
    def script(number, _):
        return Script((64.0,)) if number < 3 else STEADY

    report, rows, server = bench(script, requests=4, warmup=3)
    assert len(server.bodies) == 7
    assert len({json.dumps(body["messages"]) for body in server.bodies}) == 7
    assert (len(rows), report["ttft_s"]["max"], rows[0]["sent_s"]) == (4, 0.5, 0.0)
    assert report["duration_s"] == 4 * 1.25


def test_clients_leave_when_the_load_says_so(bench):
    endless = Script((0.5,) * 100)
    report, rows, server = bench(endless, requests=40, cancel_share=0.25, cancel_after_s=2.125, slo_stall_s=0.5)
    withdrawn = [row for row in rows if row["outcome"] == "withdrawn"]
    assert 0 < len(withdrawn) < 40
    assert {row["e2e_s"] for row in withdrawn} == {2.125}
    assert {len(row["token_times_s"]) for row in withdrawn} == {4}
    assert len(server.left) == len(withdrawn) == report["requests"]["withdrawn"]
    # No error, and what came was in time.
    assert report["errors"] == {}
    assert report["attainment"] == 1.0


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("api", ["chat", "completions", "generate"])
def test_every_endpoint_is_understood(bench, api, stream):
    report, rows, server = bench(STEADY, requests=2, api=api, stream=stream)
    assert outcomes(rows) == [("completed", "")] * 2
    assert report["e2e_s"]["max"] == 1.25
    assert report["ttft_s"]["max"] == (0.5 if stream else 1.25)
    assert report["tokens"]["source"] == ("chunks" if api == "generate" else "usage")
    assert ("messages" in server.bodies[0]) == (api == "chat")


def test_tokens_are_counted_by_chunk_where_no_usage_comes(bench):
    report, rows, _ = bench(Script((0.5, 0.25, 0.25), usage=False), requests=2)
    assert [row["output_tokens"] for row in rows] == [3, 3]
    assert report["tokens"] == {"output": 6, "source": "chunks", "prompt": None}


def test_usage_wins_over_chunks_that_hold_several_tokens(bench):
    report, _, _ = bench(Script((0.5, 0.25, 0.25), tokens=9), requests=1)
    assert report["tokens"]["output"] == 9
    assert report["tpot_s"]["max"] == 0.5 / 8


def test_turns_send_the_answers_before_them(bench):
    prompts = {"kind": "synthetic", "input_tokens": 4, "output_tokens": 4, "turns": 3}
    report, rows, server = bench(STEADY, requests=2, prompts=prompts)
    assert [(row["conversation"], row["turn"]) for row in rows] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    roles = [[message["role"] for message in body["messages"]] for body in server.bodies[:3]]
    assert roles == [["user"], ["user", "assistant", "user"], ["user", "assistant", "user", "assistant", "user"]]
    assert server.bodies[1]["messages"][1]["content"] == " w w w w"
    assert server.bodies[1]["messages"][0] == server.bodies[0]["messages"][0]
    assert report["requests"]["offered"] == 6


def test_turns_after_a_failed_one_count_as_offered_and_lost(bench):
    def script(number, _):
        return Script(status=500) if number == 1 else STEADY

    report, rows, _ = bench(script, requests=1, slo_stall_s=0.25, prompts={"kind": "synthetic", "turns": 3})
    assert [row["outcome"] for row in rows] == ["completed", "failed", "not_sent"]
    assert report["errors"] == {"http_500": 1, "not_sent": 1}
    assert report["attainment"] == 1 / 3


def test_the_declared_cap_says_nothing_about_the_forced_length(bench):
    prompts = {"kind": "synthetic", "output_tokens": "3-90"}
    _, rows, server = bench(STEADY, requests=20, lengths="forced", prompts=prompts)
    assert {body["max_tokens"] for body in server.bodies} == {1024}
    assert [body["vllm_xargs"][FIELD] for body in server.bodies] == [row["wanted_tokens"] for row in rows]
    assert len({row["wanted_tokens"] for row in rows}) > 5
    assert all(set(body) == set(server.bodies[0]) for body in server.bodies)


def test_a_server_that_does_not_force_lengths_is_noticed(bench):
    def script(number, _):
        return Script((0.5,) * 4) if number else Script((0.5,) * 5)

    report, _, _ = bench(script, requests=3, lengths="forced", prompts={"kind": "synthetic", "output_tokens": 5})
    assert report["load"]["missed_lengths"] == 2
    assert any("--logits-processors proxima_engine.forced_length:ForcedLength" in each for each in report["warnings"])


def test_lengths_by_max_tokens(bench):
    report, _, server = bench(STEADY, requests=2, lengths="cap", prompts={"kind": "synthetic", "output_tokens": 4})
    assert [(body["max_tokens"], body["ignore_eos"]) for body in server.bodies] == [(4, True)] * 2
    assert "vllm_xargs" not in server.bodies[0]
    assert (report["load"]["lengths"], report["load"]["missed_lengths"]) == ("cap", 0)


def test_the_same_seed_sends_the_same_and_another_does_not(bench):
    load = {
        "requests": 12,
        "shape": {"kind": "gamma", "rate_rps": 4},
        "prompts": {"kind": "synthetic", "input_tokens": "8-64", "output_tokens": "8-64"},
        "cancel_share": 0.5,
    }

    def sent(seed):
        _, rows, server = bench(STEADY, seed=seed, **load)
        return server.bodies, [(row["due_s"], row["outcome"]) for row in rows]

    assert sent(1) == sent(1)
    assert sent(1) != sent(2)


def test_further_pages_of_metrics_are_read_besides_the_servers_own(tmp_path):
    server = ScriptedServer(lambda *_: STEADY, None, lambda: 'vllm:num_preemptions_total{engine="0"} 7\n')
    load = loads.build(
        {"warmup": 0, "requests": 1, "shape": {"kind": "closed", "concurrency": 1}, "lengths": "natural"}
    )
    report = run(measure(server, load, tmp_path, metrics_urls=["http://scripted/not-there"])).report
    assert report["server"]["preemptions"] == 0


@pytest.mark.parametrize(
    ("steps", "again"), [pytest.param(900, 15, id="proxima"), pytest.param(0, None, id="vllms_own_scheduler")]
)
def test_what_the_server_says_about_itself(bench, steps, again):
    pages = iter(range(1000))

    def metrics():
        page = next(pages)
        return (
            "# HELP vllm:kv_cache_usage_perc x\n"
            f'vllm:kv_cache_usage_perc{{engine="0"}} {0.0 if page == 0 else 0.5}\n'
            f'vllm:kv_cache_usage_perc{{engine="1"}} {0.0 if page == 0 else 1.0}\n'
            f'vllm:num_requests_running{{engine="0"}} {page}\n'
            'vllm:num_preemptions_total{engine="0"} 7\n'
            f'proxima_recomputed_tokens_total{{engine="0"}} {40 + 5 * page}\n'
            f'proxima_scheduler_steps_total{{engine="0"}} {steps}\n'
            f'vllm:prompt_tokens_by_source_total{{engine="0",source="local_compute"}} {100 + 10 * page}\n'
            f'vllm:prompt_tokens_by_source_total{{engine="0",source="local_cache_hit"}} {50 * page}\n'
            f'vllm:prompt_tokens_by_source_total{{engine="1",source="local_compute"}} {page}\n'
            f'vllm:num_preemptions_total{{engine="1"}} {2 * page}\n'
            'vllm:cache_config_info{block_size="32",num_cpu_blocks="None",num_gpu_blocks="192",engine="0"} 1.0\n'
            'vllm:cache_config_info{block_size="32",num_cpu_blocks="None",num_gpu_blocks="100",engine="1"} 1.0\n'
        )

    report, _, _ = bench(Script((4.125,)), metrics=metrics, requests=1)
    # Pages: before, at 2 s, at 4 s, and after.
    assert report["server"] == {
        "preemptions": 6,
        "prefill_tokens": 33,
        "recomputed_tokens": again,
        "kv_blocks": 292,
        "kv_use": {"mean": 0.75, "max": 0.75},
        "running": {"mean": 1.5, "max": 2.0},
        "device_utilisation": None,
        "series": {
            "time_s": [0.0, 2.0, 4.0, 4.125],
            "kv_use": [0.0, 0.75, 0.75, 0.75],
            "running": [0.0, 1.0, 2.0, 3.0],
        },
    }


def about_lengths(report):
    """Its warnings, without the cures. In virtual time the client is always busy, which may be one more."""
    return [text.split(":")[0] for text in report["warnings"] if "length asked for" in text]


@pytest.mark.parametrize(
    ("pieces", "warned_s"), [pytest.param(40, 3.5, id="too long"), pytest.param(2, 1.5, id="too short")]
)
def test_a_length_that_is_not_forced_is_pointed_out_while_the_warm_up_runs(tmp_path, pieces, warned_s):
    warned = []
    server = ScriptedServer(lambda *_: Script((0.6875,) * pieces))
    values = {"requests": 1, "warmup": 8, "prompts": {"kind": "synthetic", "output_tokens": 4}}
    load = loads.build({**values, "shape": {"kind": "closed", "concurrency": 2}})

    def warn(text):
        warned.append((text, asyncio.get_running_loop().time()))

    measurement = run(measure(server, load, tmp_path, warn=warn))
    assert [(text.split(":")[0], time_s) for text, time_s in warned] == [
        ("a warm-up answer did not have the length asked for", warned_s)
    ]
    assert about_lengths(measurement.report) == [
        "the rest of the warm-up was left out, because a warm-up answer did not have the length asked for",
        "1 of 1 answers did not have the length asked for",
    ]


def test_a_warm_up_whose_lengths_are_not_forced_is_left_for_the_measurement(tmp_path):
    """Two at once, of which the second has said nothing yet; neither is waited for, nor are the other six sent."""
    delays_s = {0: (0.6875,) * 1024, 1: (HANG,)}
    server = ScriptedServer(lambda number, _: Script(delays_s.get(number, (0.6875,) * 40)))
    values = {"requests": 3, "warmup": 8, "prompts": {"kind": "synthetic", "output_tokens": 4}}
    load = loads.build({**values, "shape": {"kind": "closed", "concurrency": 2}})

    async def began_s():
        measurement = await measure(server, load, tmp_path)
        return measurement, asyncio.get_running_loop().time() - measurement.report["duration_s"]

    measurement, began = run(began_s())
    # The fifth piece is one too many, and is seen at the next look.
    assert began == 3.5
    assert sorted(server.left) == [0, 1]
    assert len(server.bodies) == 2 + 3
    assert outcomes(measurement.rows) == [("completed", "")] * 3
    assert measurement.report["load"]["missed_lengths"] == 3


def test_a_warm_up_of_capped_lengths_goes_on(tmp_path):
    """No answer of it can be longer than its cap."""
    server = ScriptedServer(lambda *_: Script((0.5,) * 2))
    values = {"requests": 1, "warmup": 3, "lengths": "cap", "prompts": {"kind": "synthetic", "output_tokens": 4}}
    load = loads.build({**values, "shape": {"kind": "closed", "concurrency": 1}})
    measurement = run(measure(server, load, tmp_path))
    assert (len(server.bodies), server.left) == (4, [])
    assert about_lengths(measurement.report) == ["1 of 1 answers did not have the length asked for"]


def test_progress_shows_how_far_it_is(tmp_path):
    def script(number, _):
        return Script(status=500) if number == 2 else Script((1.125,))

    server = ScriptedServer(script)
    load = loads.build({"requests": 4, "warmup": 1, "shape": {"kind": "closed", "concurrency": 1}})
    console = Console(file=io.StringIO(), force_terminal=True, width=150, color_system=None)
    run(measure(server, load, tmp_path, partial(live.watching, console=console)))
    shown = console.file.getvalue()
    assert "warm-up" in shown
    assert "0/1" in shown
    assert "0/4" in shown
    assert "3/4" in shown
    assert "1 in flight" in shown
    assert "1 errors" in shown
