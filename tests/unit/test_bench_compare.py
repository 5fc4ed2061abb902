"""Comparisons: what arms mean, in which order they are measured, and what the ratios say."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from listening import listening
from rich.console import Console
from scripted_server import Script, ScriptedServer

from proxima_bench import arms, compare_command, compare_run, comparison_report, loads, machine, servers
from proxima_bench.arms import Arm
from proxima_bench.comparison import FIGURES, Case, Comparison, Sample
from proxima_bench.intervals import FEWEST_ROUNDS, ratio_of_medians
from proxima_bench.measurement import Measurement
from proxima_config.errors import UsageError
from proxima_server.cli.main import main

FAST = Script((0.0, 0.0))
QUICK = ["--requests", "4", "--warmup", "1", "--concurrency", "2", "--output-tokens", "2"]


class TestArms:
    def test_all_kinds(self):
        text = 'native,native+--max-num-seqs=64+--seed=1,gang,vllm+--hf-overrides={"a":1,"b":2},url:old=http://h:1/v1'
        native, small, gang, vllm, old = arms.parse(text)
        assert (native.kind, native.flags) == ("native", ())
        assert (small.name, small.flags) == ("native+--max-num-seqs=64+--seed=1", ("--max-num-seqs=64", "--seed=1"))
        assert gang.kind == "gang"
        assert (vllm.kind, vllm.flags) == ("vllm", ('--hf-overrides={"a":1,"b":2}',))
        assert (old.name, old.url) == ("old", "http://h:1")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("native", "at least two"),
            ("native,native", "stands there twice"),
            ("native,url:x=http://a,url:x=http://b", "x stands there twice"),
            ("native,gpt", "is no arm"),
            ("native+,proxima", "is no arm"),
            ("native,url:http://h:1", "must look like url:NAME="),
            ("native,url:a=h:1", "--arms: url:a must look like http://"),
            ("native,url:a=http://h:99999", "a port up to 65535"),
            ("native,url:a=http://h:1+--seed=1", "runs already and takes no flags"),
            ("", "needs at least two"),
        ],
    )
    def test_what_is_no_list_of_arms(self, text, message):
        with pytest.raises(UsageError, match=message):
            arms.parse(text)


class TestRatios:
    def test_the_ratio_is_that_of_the_medians(self):
        ratio = ratio_of_medians([3.0, 30.0, 6.0], [2.0, 4.0, 3.0])
        assert ratio.value == 2.0
        assert ratio.low <= 2.0 <= ratio.high

    def test_a_machine_that_slows_down_for_both_decides_nothing(self):
        slowing = [10.0, 8.0, 5.0, 2.0]
        ratio = ratio_of_medians([1.25 * value for value in slowing], slowing)
        assert (ratio.low, ratio.value, ratio.high) == pytest.approx((1.25, 1.25, 1.25))
        assert ratio.differs

    @settings(max_examples=10)
    @given(st.lists(st.floats(0.01, 100), min_size=FEWEST_ROUNDS, max_size=6))
    def test_equal_arms_never_differ(self, values):
        ratio = ratio_of_medians(values, values)
        assert (ratio.value, ratio.low, ratio.high) == (1, 1, 1)
        assert not ratio.differs

    def test_noise_around_1_is_no_difference(self):
        assert not ratio_of_medians([1.0, 1.1, 0.9, 1.05], [1.05, 0.95, 1.0, 1.0]).differs

    def test_few_rounds_have_no_interval(self):
        ratio = ratio_of_medians([2.0, 4.0], [1.0, 2.0])
        assert (ratio.value, ratio.low, ratio.high) == (2.0, None, None)
        assert not ratio.differs

    def test_there_is_no_ratio_to_nothing(self):
        assert ratio_of_medians([1.0, 1.0, 1.0], [0.0, 1.0, 1.0]) is None


def sample(arm, number, *, case="", warnings=(), blocks=192, preemptions=0, **figures):
    report = {figure.path[0]: None for figure in FIGURES} | {"warnings": list(warnings), **figures}
    report["server"] = {"kv_blocks": blocks, "preemptions": preemptions}
    return Sample(case, arm, number, Measurement(report, []))


def compared(*samples, rounds=3):
    chosen = [Arm("native", "native"), Arm("proxima", "proxima")]
    return Comparison(chosen, rounds, [Case("", loads.preset("pressure"))], list(samples))


@pytest.fixture
def a_win_and_a_loss():
    samples = [sample("native", number, qps=4.0 + number, e2e_s={"p50": 2.0}) for number in range(1, 6)]
    samples += [
        sample("proxima", number, qps=8.0 + 2 * number, e2e_s={"p50": 3.0}, preemptions=7) for number in range(1, 6)
    ]
    return compared(*samples, rounds=5)


class TestReport:
    def test_what_is_lost_is_shown_beside_what_is_won(self, a_win_and_a_loss):
        text = comparison_report.markdown(a_win_and_a_loss)
        assert "| requests/s ↑ | 7 | 14 | 2.00 [2.00, 2.00] |" in text
        assert "| E2E p50 (s) ↓ | 2 | 3 | 1.50 [1.50, 1.50] |" in text
        assert "| preemptions ↓ | 0 | 7 | - |" in text
        assert "beyond the interval: better in requests/s; worse in E2E p50 (s)." in text
        assert "Warning" not in text

    def test_the_terminal_shows_the_same(self, a_win_and_a_loss, capsys):
        comparison_report.show(a_win_and_a_loss, Console(width=160))
        shown = capsys.readouterr().out
        for part in ("pressure: 96 requests", "5 interleaved rounds", "2.00 [2.00, 2.00]", "worse in E2E p50", "cores"):
            assert part in shown

    def test_the_machine_of_servers_elsewhere_is_not_known(self, a_win_and_a_loss):
        here = machine.sentence(machine.describe())
        for urls, shown in (
            (("", ""), f"{here}."),
            (("", "http://b"), f"{here}; not of proxima."),
            (("http://a", "http://b"), f"client: {here}."),
        ):
            arms = [replace(arm, url=url) for arm, url in zip(a_win_and_a_loss.arms, urls, strict=True)]
            assert comparison_report.markdown(replace(a_win_and_a_loss, arms=arms)).splitlines()[2] == shown

    def test_arms_with_different_pools_are_pointed_out(self):
        found = comparison_report.warnings(
            compared(*(sample(arm, 1, blocks=blocks) for arm, blocks in (("native", 192), ("proxima", 300))), rounds=3)
        )
        assert found == ["the arms have different numbers of KV blocks (native 192, proxima 300)"]

    def test_warnings_of_measurements_are_kept_once(self):
        measured = [sample(arm, number, warnings=["slow client"]) for arm in ("native", "proxima") for number in (1, 2)]
        found = comparison_report.warnings(compared(*measured, rounds=2))
        assert found[0].startswith("fewer than 3 rounds")
        assert found[1:] == ["native: slow client", "proxima: slow client"]


@pytest.fixture
def compare(capsys):
    """Compare scripted servers that run already; ``first`` is the baseline."""

    def compare(first, second, *flags):
        with ExitStack() as stack:
            urls = [stack.enter_context(listening(server)) for server in (first, second)]
            code = main(["bench", "compare", "--arms", f"url:a={urls[0]},url:b={urls[1]}", *flags])
        out, err = capsys.readouterr()
        return code, out, err

    return compare


def asked(server):
    return [body["messages"][0]["content"] for body in server.bodies]


class TestCompare:
    def test_arms_take_turns_with_the_same_requests_and_no_round_repeats_another(self, compare):
        order = []

        def script(name):
            def act(_number, body):
                order.append(name)
                return FAST

            return act

        first, second = ScriptedServer(script("a")), ScriptedServer(script("b"))
        code, out, _ = compare(first, second, *QUICK, "--rounds", "3", "--json")
        assert code == 0
        # One request each before anything is measured.
        assert "".join(order) == "ab" + "aaaaabbbbb" * 3
        assert sorted(asked(first)) == sorted(asked(second))
        assert len(set(asked(first))) == len(asked(first))
        report = json.loads(out)
        assert [(each["round"], each["arm"]) for each in report["measurements"]] == [
            (number, arm) for number in (1, 2, 3) for arm in "ab"
        ]
        # The warm-up is in no figure.
        assert {each["report"]["requests"]["offered"] for each in report["measurements"]} == {4}
        (case,) = report["cases"]
        assert len(case["arms"]["a"]["qps"]["rounds"]) == 3
        assert case["arms"]["a"]["qps"]["ratio"] == {"value": 1, "low": 1, "high": 1}
        assert set(case["arms"]["b"]["qps"]["ratio"]) == {"value", "low", "high"}
        assert report["machine"]["cores"] >= 1

    def test_a_slower_arm_is_worse(self, compare):
        slow = ScriptedServer(lambda *_: Script((0.05, 0.05)))
        code, out, _ = compare(ScriptedServer(lambda *_: FAST), slow, *QUICK, "--rounds", "5", "--markdown")
        assert code == 0
        (losses,) = [line for line in out.splitlines() if line.startswith("b against a")]
        better, worse = losses.split(";")
        assert better.endswith("better in nothing")
        assert "E2E p50" in worse

    def test_loads_relative_to_saturation_measure_it_first(self, compare):
        flags = ["--preset", "overload", "--requests", "6", "--warmup", "0", "--rounds", "1", "--lengths", "natural"]
        server = ScriptedServer(lambda *_: Script((0.02,)))
        code, out, err = compare(server, ScriptedServer(lambda *_: Script((0.02,))), *flags, "--json")
        report = json.loads(out)
        assert code == 0
        assert [case["name"] for case in report["cases"]] == ["0.8x", "1.2x", "1.5x"]
        assert [case["load"]["shape"]["rate_rps"] / report["saturation_rps"] for case in report["cases"]] == [
            pytest.approx(multiple) for multiple in (0.8, 1.2, 1.5)
        ]
        assert "a saturation: 6 of 6" in err

    def test_three_rounds_are_too_few_for_a_verdict(self, compare):
        servers = (ScriptedServer(lambda *_: FAST) for _ in range(2))
        _, out, _ = compare(*servers, *QUICK, "--rounds", "3", "--markdown")
        assert "ratios with 95% intervals" in out
        assert "beyond the interval" not in out

    def test_an_arm_that_cannot_be_measured_is_found_before_the_first_round(self, compare):
        first = ScriptedServer(lambda *_: FAST)
        code, _, err = compare(first, ScriptedServer(lambda *_: Script(status=500)), *QUICK)
        assert code == 1
        assert "answered none of the warm-up requests: http_500" in err
        assert len(first.bodies) == 1

    def test_whole_rounds_are_kept_when_an_arm_dies(self, compare):
        # Its probe and its first round, then nothing.
        dying = ScriptedServer(lambda number, _: FAST if number < 6 else Script(status=500))
        code, out, err = compare(ScriptedServer(lambda *_: FAST), dying, *QUICK, "--rounds", "3", "--json")
        assert code == 1
        assert "ended after 1 rounds: " in err
        report = json.loads(out)
        assert [(each["arm"], each["round"]) for each in report["measurements"]] == [("a", 1), ("b", 1)]
        assert "http_500" in report["failure"]

    def test_a_metrics_page_that_is_none_does_no_harm(self, compare):
        pages = "vllm:num_requests_running{} nan\nvllm:num_preemptions_total{} many\n"
        servers = [ScriptedServer(lambda *_: FAST, metrics=lambda: pages) for _ in range(2)]
        code, out, _ = compare(*servers, *QUICK, "--rounds", "1", "--json")
        assert code == 0
        assert json.loads(out)["measurements"][0]["report"]["server"] is None

    @pytest.mark.parametrize("warmup", ["0", "1"])
    def test_an_arm_that_ignores_forced_lengths_ends_the_comparison(self, compare, warmup):
        code, _, err = compare(
            ScriptedServer(lambda *_: FAST), ScriptedServer(lambda *_: Script((0.0,))), *QUICK, "--warmup", warmup
        )
        assert code == 1
        assert "b: " in err
        assert "did not have the length asked for" in err

    def test_an_arm_that_fails_ends_the_comparison(self, compare):
        code, _, err = compare(
            ScriptedServer(lambda *_: FAST), ScriptedServer(lambda *_: Script(status=500)), *QUICK, "--warmup", "0"
        )
        assert code == 1
        assert "b completed no request: http_500 4" in err

    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            (["--rounds", "0"], "--rounds must be at least 1"),
            (["--arms", "url:a=http://h:1,url:b=http://h:2", "--", "--seed=1"], "there are only url: arms"),
            (["--arms", "url:a=http://h:1,url:b=http://h:2", "--restart"], "--restart: for arms that are started"),
            (["--arms", ""], "needs at least two"),
            (["--arms", "native"], "at least two"),
            (["--preset", "presure"], "did you mean pressure"),
        ],
    )
    def test_wrong_usage(self, capsys, flags, message):
        assert main(["bench", "compare", *flags]) == 2
        assert message in capsys.readouterr().err

    def test_an_arm_that_does_not_start_says_why(self, capsys, tmp_path):
        flags = ["--arms", "native+--no-such-flag=1,proxima", "--logs", str(tmp_path)]
        assert main(["bench", "compare", *flags]) == 1
        err = capsys.readouterr().err
        assert "native+--no-such-flag=1 ended with exit code 2 before it was ready" in err
        assert "no-such-flag" in (tmp_path / "native_--no-such-flag_1.log").read_text()


class TestServers:
    async def test_own_flags_come_after_those_of_all(self):
        arm = Arm("small", "native", ("--max-num-seqs=2",))
        command = await servers.command(arm, "smollm2-135m", loads.preset("overload"), ["--max-num-seqs=9"], 81)
        assert command[1:4] == ["serve", "smollm2-135m", "--scheduler=native"]
        assert command.index("--max-num-seqs=2") > command.index("--max-num-seqs=9") > command.index("--ttft-s=10")
        assert "--port=81" in command

    async def test_vllms_own_server_gets_the_model_as_it_is(self):
        command = await servers.command(Arm("vllm", "vllm"), "some/model", loads.preset("overload"), [], 81)
        assert command[0] == sys.executable
        assert "vllm.entrypoints.openai.api_server" in command
        assert "--model=some/model" in command
        assert "--num-gpu-blocks-override=192" in command
        assert not any(part.startswith(("--scheduler", "--ttft-s")) for part in command)

    def test_a_preset_brings_its_pool_and_the_processor(self):
        flags = servers.engine_flags(loads.preset("pressure"))
        assert "--num-gpu-blocks-override=192" in flags
        assert "--logits-processors=proxima_engine.forced_length:ForcedLength" in flags
        assert servers.engine_flags(loads.preset("article")) == []


@pytest.mark.parametrize(
    ("flags", "has_gpu", "requests"),
    [
        pytest.param(["--arms", "native,proxima"], False, 64, id="cut_on_a_cpu"),
        pytest.param(["--arms", "native,proxima"], True, 96, id="whole_on_a_gpu"),
        pytest.param(["--arms", "native,proxima", "--full"], False, 96, id="whole_when_asked_for"),
        pytest.param(["--arms", "url:a=http://h:1,url:b=http://h:2"], False, 96, id="whole_elsewhere"),
        pytest.param(["--arms", "native,proxima", "--requests", "7"], False, 7, id="flags_win"),
    ],
)
def test_where_a_preset_is_cut(flags, has_gpu, requests):
    parser = argparse.ArgumentParser()
    compare_command.ACTION.configure(parser)
    plan = compare_run.plan_from(parser.parse_args(["--preset", "pressure", *flags]), has_gpu=has_gpu)
    assert plan.load.requests == requests
    assert plan.cut == (requests in (64, 7))


@pytest.mark.parametrize(
    ("flags", "has_gpu", "restart"),
    [
        pytest.param(["--arms", "native,proxima"], False, False, id="side_by_side_on_a_cpu"),
        pytest.param(["--arms", "native,proxima"], True, True, id="one_at_a_time_on_a_gpu"),
        pytest.param(["--arms", "vllm,proxima"], False, True, id="vllm_leaves_no_room"),
        pytest.param(["--arms", "proxima,url:a=http://h:1"], True, False, id="only_one_is_started"),
        pytest.param(["--arms", "native,proxima", "--restart"], False, True, id="when_asked_for"),
    ],
)
def test_where_arms_are_started_for_each_turn(flags, has_gpu, restart):
    parser = argparse.ArgumentParser()
    compare_command.ACTION.configure(parser)
    assert compare_run.plan_from(parser.parse_args(flags), has_gpu=has_gpu).restart == restart


def test_a_preset_for_a_cpu_keeps_what_it_does_not_change():
    whole = loads.preset("pressure")
    small = loads.for_cpu(whole)
    assert small.requests < whole.requests
    assert small.engine["block_size"] == whole.engine["block_size"]
    assert small.prompts.input_tokens == whole.prompts.input_tokens
    assert small.shape == whole.shape

    def pressure(load):
        blocks = -(-(int(load.prompts.input_tokens) + int(load.prompts.output_tokens)) // load.engine["block_size"])
        return load.shape.concurrency * blocks / load.engine["num_gpu_blocks_override"]

    assert pressure(small) == pytest.approx(pressure(whole), rel=0.05)
