"""`proxima lab` as users type it."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise

import pytest

from proxima_engine.lab.arms import ARMS
from proxima_engine.lab.plot import draw
from proxima_server.cli.main import main

SMALL = ["--limit", "30", "--rate-scale", "3", "--blocks", "400"]
FIGURES = {
    "attainment",
    "goodput_rps",
    "qps",
    "output_tokens_per_s",
    "ttft_p50_s",
    "ttft_p99_s",
    "e2e_mean_s",
    "e2e_p95_s",
    "e2e_p99_s",
    "stall_p95_s",
    "stall_max_s",
    "preemptions",
    "recomputed_tokens",
    "forecasts_checked",
    "forecasts_exceeded",
    "pool_use_mean",
    "running_mean",
    "schedule_us_mean",
}


@pytest.fixture
def lab(capsys):
    def lab(*flags):
        code = main(["lab", *flags])
        out, err = capsys.readouterr()
        return code, out, err

    return lab


def test_the_same_seed_gives_the_same_json(lab):
    """Under every arm."""
    flags = ["compare", *SMALL, "--jitter-s", "0.1", "--json", "--arms"]
    code, first, _ = lab(*flags, "all", "--seed", "3")
    assert code == 0
    assert lab(*flags, "all", "--seed", "3")[1] == first
    arms = json.loads(first)["arms"]
    assert set(arms) == set(ARMS)
    other_seed = json.loads(lab(*flags, "native", "--seed", "4")[1])["arms"]
    assert other_seed["native"] != arms["native"]
    assert all(set(figures) >= FIGURES for figures in arms.values())
    assert {name for name, figures in arms.items() if figures["cheats"]} == {"past-future-oracle", "sjf-oracle"}
    assert all(figures["requests"] == 30 for figures in arms.values())


@pytest.mark.parametrize("kind", ["giant-head", "same-length-wave", "far-cap", "drift"])
def test_the_same_seed_gives_the_same_json_on_traffic_that_is_meant_to_hurt(lab, kind):
    flags = ["compare", "--generate", f"{kind}:requests=12", "--blocks", "200", "--seed", "5", "--arms", "all"]
    flags += ["--json"]
    code, first, _ = lab(*flags)
    assert code == 0
    assert lab(*flags)[1] == first


def test_the_table_names_the_setting_and_who_cheats(lab, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, err = lab("compare", *SMALL, "--arms", "native,sjf-oracle", "--time-scheduler")
    assert code == 0
    for part in ("azure2023_conv_1500: 30 requests", "h100-llama2-7b, 400 blocks of 16", "scheduling, µs a step"):
        assert part in out
    assert "sjf-oracle knows every answer's true length" in out
    assert "native: " in err


def test_a_sweep_finds_the_load_that_each_arm_bears_and_draws_it(lab, tmp_path):
    plot = tmp_path / "curves.svg"
    flags = ["sweep", "--limit", "40", "--blocks", "1500", "--arms", "native,deadline-watermark", "--loads", "0.5,40"]
    flags += ["--bisect", "2"]
    flags += ["--slo", "ttft=0.3,stall=0.2"]
    code, out, _ = lab(*flags, "--plot", str(plot), "--json")
    assert code == 0
    report = json.loads(out)
    assert report["loads"] == [0.5, 40]
    curve = report["arms"]["native"]
    assert curve["attainment"][0] > curve["attainment"][1]
    points = sorted([(0.5, curve["attainment"][0]), *map(tuple, curve["bisected"]), (40, curve["attainment"][1])])
    assert len(points) == 4
    below, above = next((a[0], b[0]) for a, b in pairwise(points) if b[1] < 0.9)
    assert below <= curve["load_at_90"] <= above
    # Each bisection halves the gap.
    assert above - below == pytest.approx(39.5 / 4)
    picture = plot.read_text()
    assert picture.startswith("<?xml")
    assert "deadline-watermark" in picture
    # The same picture for the same figures.
    draw(report, plot)
    assert plot.read_text() == picture


def test_a_pool_that_no_prompt_fits_into_is_an_error(lab):
    code, _, err = lab("run", "--limit", "5", "--blocks", "1")
    assert code == 1
    assert "none of the 5 prompts leaves room for an answer in 1 blocks of 16 tokens" in err


def test_made_up_traffic_and_one_arm(lab):
    code, out, _ = lab("run", "--generate", "giant-head:requests=20", "--blocks", "200", "--json")
    assert code == 0
    (name, figures) = next(iter(json.loads(out)["arms"].items()))
    assert name == "proxima"
    assert figures["requests"] == 20


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["compare", "--arms", "nativ"], "did you mean native"),
        (["compare", "--arms", "nonsense"], f"--arms: no arm is called 'nonsense' (there are {', '.join(ARMS)})"),
        (["run", "--arm", "native,proxima"], "--arm: no arm is called 'native,proxima'"),
        (["sweep", "--arms", "native,"], "--arms: no arm is called ''"),
        (["calibrate", "--steps", "missing.jsonl", "--arm", "nonsense"], "--arm: no arm is called 'nonsense'"),
        (["compare", "--arms", "native,native"], "names one twice"),
        (["compare", "--slo", "ttft=2"], "--slo must look like"),
        (["compare", "--slo", "ttft=0,stall=1"], "--slo must look like"),
        (["compare", "--blocks", "0"], "--blocks must be at least 1"),
        (["compare", "--max-tokens", "0"], "--max-tokens: 0"),
        (["compare", "--rate-scale", "-1"], "--rate-scale: -1"),
        (["compare", "--generate", "poisson:rate=3,rate=4"], "rate stands there twice"),
        (["compare", "--jobs", "0"], "--jobs must be at least 1"),
        (["compare", "--trace", "missing.csv"], "missing.csv: cannot be read"),
        (["compare", "--generate", "posson"], "did you mean"),
        (["compare", "--profile", "h100"], "--profile: h100 is unknown"),
        (["sweep", "--loads", "1,0.5"], "--loads must be growing"),
        (["sweep", "--plot", "x.gif"], "--plot must end with"),
        (["sweep", "--bisect", "-1"], "--bisect must be at least 0"),
        (["calibrate", "--steps", "missing.jsonl"], "missing.jsonl cannot be read"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_names_the_rule(lab, flags, message):
    code, _, err = lab(*flags)
    assert code == 2
    assert message in err


@pytest.mark.parametrize(
    "flags",
    [["compare", "--arms", "nonsense"], ["compare", "--profile", "h100"], ["calibrate", "--steps", "missing.jsonl"]],
    ids=["arm", "profile", "steps"],
)
def test_a_typing_error_is_answered_before_vllm_is_imported(flags):
    """Which takes a quarter of a minute on a small machine."""
    asked = f"import sys; from proxima_server.cli.main import main; code = main(['lab', *{flags}])"
    program = f"{asked}; sys.exit(3 if 'vllm' in sys.modules or 'torch' in sys.modules else code)"
    assert subprocess.run([sys.executable, "-c", program], check=False, capture_output=True).returncode == 2
