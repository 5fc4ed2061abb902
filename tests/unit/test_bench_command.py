"""`proxima bench serve` as users type it."""

from __future__ import annotations

import json

import pytest
from listening import listening
from scripted_server import Script, ScriptedServer

from proxima_bench import client_health
from proxima_server.cli.main import main

FAST = Script((0.0, 0.0))


@pytest.fixture
def bench(capsys):
    def bench(server, *flags):
        with listening(server) as url:
            code = main(["bench", "serve", "--url", f"{url}/v1", *flags])
        out, err = capsys.readouterr()
        return code, out, err

    return bench


def every(script):
    return ScriptedServer(lambda *_: script)


def test_json_has_every_figure(bench):
    code, out, _ = bench(every(FAST), "--requests", "5", "--concurrency", "2", "--output-tokens", "2", "--json")
    report = json.loads(out)
    assert code == 0
    statistics = {"mean", "p50", "p90", "p95", "p99", "max"}
    for name in ("ttft_s", "itl_s", "tpot_s", "e2e_s", "stall_s"):
        assert set(report[name]) == statistics
    assert {"qps", "output_tokens_per_s", "attainment", "goodput_rps", "errors", "client", "load", "server"} <= set(
        report
    )
    assert {"cpu_share", "lag_s"} <= set(report["client"])
    assert report["load"]["model"] == "scripted"
    assert report["requests"]["completed"] == 5


def test_the_table_is_for_people_and_progress_is_not_in_it(bench, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    code, out, _ = bench(every(FAST), "--preset", "throughput", "--requests", "5", "--output-tokens", "2")
    assert code == 0
    for word in ("throughput: 5 requests, closed loop, 64 at once", "TTFT", "stall", "attainment", "goodput", "5 of 5"):
        assert word in out
    assert "in flight" not in out


def test_requests_are_logged_one_a_line(bench, tmp_path):
    file = tmp_path / "log.jsonl"
    bench(every(FAST), "--requests", "4", "--log-requests", str(file))
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["conversation"] for row in rows] == [0, 1, 2, 3]
    assert all(row["outcome"] == "completed" and len(row["token_times_s"]) == 2 for row in rows)


def one_in_four_refused(number, _):
    return Script(status=429) if number % 4 == 3 else FAST


@pytest.mark.parametrize(
    ("flags", "code", "reason"),
    [
        pytest.param([], 0, "", id="errors_alone_are_a_result"),
        pytest.param(["--max-error-rate", "0.25"], 0, "", id="as_many_as_allowed"),
        pytest.param(["--max-error-rate", "0.2"], 1, "error rate 0.25 is above 0.2", id="too_many_errors"),
        pytest.param(["--min-attainment", "0.75", "--slo-ttft-s", "60", "--slo-stall-s", "60"], 0, "", id="attained"),
        pytest.param(["--min-attainment", "0.8"], 1, "is below 0.8", id="too_few_attained"),
    ],
)
def test_exit_codes_for_ci(bench, flags, code, reason):
    server = ScriptedServer(one_in_four_refused)
    found, _, err = bench(server, "--requests", "8", "--warmup", "0", "--concurrency", "1", *flags)
    assert found == code
    assert reason in err


def test_a_measurement_in_which_everything_fails_has_failed(bench):
    code, _, err = bench(every(Script(status=500)), "--requests", "2", "--warmup", "0")
    assert code == 1
    assert "every request failed" in err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        pytest.param(["--url", "localhost:8000"], "must look like http://host:port", id="no_scheme"),
        pytest.param(["--preset", "presure"], "did you mean pressure", id="unknown_preset"),
        pytest.param(["--preset", "overload"], "give --rate", id="saturation_unknown"),
        pytest.param(["--ramp", "1:2"], "--ramp must look like", id="ramp"),
        pytest.param(["--burstiness", "2"], "--burstiness goes with --gamma", id="burstiness_alone"),
        pytest.param(["--rate", "2"], "--rate goes with --replay", id="rate_alone"),
        pytest.param(["--input-tokens", "many"], "is no token count", id="lengths"),
        pytest.param(["--requests", "0"], "requests: ", id="no_requests"),
        pytest.param(["--max-error-rate", "2"], "not between 0 and 1", id="share"),
        pytest.param(["--extra-body", "[1]"], "not a JSON object", id="extra_body"),
        pytest.param(["--poisson", "1", "--constant", "1"], "not allowed with", id="two_shapes"),
        pytest.param(["--reqests", "3"], "did you mean --requests", id="mistyped_flag"),
        pytest.param(["--prompt", "hi", "--prefix-tokens", "3"], "prefix_tokens", id="flag_of_other_prompts"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_one_line(capsys, flags, message):
    assert main(["bench", "serve", "--url", "http://127.0.0.1:9", *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("proxima: error: ")
    assert message in line


def test_nobody_answers(capsys):
    # Port 9 is discard, which nobody offers any more.
    assert main(["bench", "serve", "--url", "http://127.0.0.1:9"]) == 1
    assert "no answer from http://127.0.0.1:9" in capsys.readouterr().err
    assert main(["bench", "serve", "--url", "http://127.0.0.1:9", "--model", "m"]) == 1
    assert "http://127.0.0.1:9 answered none of the warm-up requests: connect" in capsys.readouterr().err


def test_a_server_whose_extra_endpoints_are_web_pages(bench):
    """Some answer every unknown path with a page and status 200."""
    server = every(FAST)
    server.page_for = "/tokenize"
    code, out, _ = bench(server, "--requests", "2", "--output-tokens", "2", "--json")
    assert code == 0
    assert json.loads(out)["load"]["prompt_lengths"] == "approximate"


def test_flags_change_a_preset(bench):
    server = every(FAST)
    code, out, _ = bench(
        server, "--preset", "pressure", "--requests", "3", "--warmup", "0", "--poisson", "1000", "--output-tokens", "2",
        "--temperature", "0.5", "--extra-body", '{"top_k": 7, "vllm_xargs": {"a": 1}}', "--json",
    )  # fmt: skip
    load = json.loads(out)["load"]
    assert code == 0
    assert (load["preset"], load["arrivals"], load["prompts"]["input_tokens"]) == ("pressure", "Poisson, 1000/s", "32")
    body = server.bodies[0]
    assert (body["temperature"], body["top_k"]) == (0.5, 7)
    assert body["vllm_xargs"] == {"bench_output_tokens": 2, "a": 1}


@pytest.mark.parametrize(
    ("client", "reason"),
    [
        pytest.param({"cpu_share": 0.5, "lag_s": {"p99": 0.01}}, None, id="idle"),
        pytest.param({"cpu_share": 0.95, "lag_s": {"p99": 0.01}}, "used 95% of a core", id="busy"),
        pytest.param({"cpu_share": 0.5, "lag_s": {"p99": 0.2}}, "lagged 200 ms", id="late"),
        pytest.param({"cpu_share": 0.0, "lag_s": {"p99": None}}, None, id="too_short_to_tell"),
    ],
)
def test_a_client_that_cannot_keep_up_says_so(client, reason):
    found = client_health.bottleneck(client)
    assert (found is None) if reason is None else (reason in found)


def test_two_thousand_streams_at_once(bench):
    """All are open at the same time: the server answers none before it has seen every one."""
    streams = "2000"
    server = ScriptedServer(lambda *_: FAST, gather=2000)
    code, out, _ = bench(server, "--requests", streams, "--concurrency", streams, "--warmup", "0", "--json")
    report = json.loads(out)
    assert (code, report["requests"]["completed"], report["errors"]) == (0, 2000, {})
