"""The scripts that check, time and tune on a GPU: as far as they go without one."""

from __future__ import annotations

import csv
import inspect
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS / "gpu"))


def ten_us(call):
    """A timer for tables whose numbers can be foretold."""
    call()
    return 10.0


@pytest.mark.slow
def test_times_become_a_table_and_a_plot(scripts, tmp_path):
    import time_kernels
    from problems import Shape

    sizes = {"heads": 4, "kv_heads": 2, "head_size": 64, "dtype": torch.float32}
    decodes = [Shape("2 x 40", (40, 40), **sizes), Shape("ragged", (70, 3), query_len=2, **sizes)]
    prefills = [Shape("1 x 20", (20,), query_len=20, **sizes)]
    rows = []
    time_kernels.run("cpu", ten_us, decodes, prefills, rows, layers=2, blocks=1)
    time_kernels.write_csv(rows, tmp_path / "kernels.csv")
    time_kernels.plot(rows, tmp_path / "kernels.svg")
    table = list(csv.DictReader((tmp_path / "kernels.csv").read_text().splitlines()))
    timed = {(row["operation"], row["shape"], row["implementation"]) for row in table if row["us"]}
    assert ("decode", "2 x 40", "proxima") in timed
    assert ("decode", "ragged", "proxima, with write") in timed
    assert ("decode", "ragged", "SDPA, gathered") in timed
    assert ("prefill", "1 x 20", "proxima") in timed
    assert {"copy", "write_kv", "swap out", "swap in", "copy on write", "2 decodes beside --swap out"} <= {
        operation for operation, _, _ in timed
    }
    absent = next(row for row in table if row["implementation"] == "FlashInfer")
    assert absent["us"] == ""
    assert absent["note"].startswith("ModuleNotFoundError")
    decode = next(row for row in table if row["implementation"] == "proxima")
    moved = (80 * 2 * 2 * 64 + 2 * 2 * 4 * 64) * 4
    assert float(decode["tb_per_s"]) == pytest.approx(moved / 10 / 1e6, abs=1e-4)
    copied = 2 * (1 << 16)
    assert float(decode["share_of_copy"]) == pytest.approx(moved / copied, abs=1e-3)
    assert "<svg" in (tmp_path / "kernels.svg").read_text()


@pytest.mark.slow
def test_the_rivals_compute_the_same(scripts):
    """Otherwise their times would say nothing. What is not installed here is compared on a machine that has it."""
    import problems
    import rivals
    import time_kernels

    shape = problems.Shape("ragged", (70, 3), query_len=2, heads=4, kv_heads=2, head_size=64, dtype=torch.float32)
    problem = problems.make(shape, "cpu")
    out = time_kernels.ours_decode(problem)()
    gathered = rivals.sdpa(problem)().transpose(1, 2).reshape(out.shape)
    torch.testing.assert_close(out, gathered, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_tuning_keeps_the_fastest_that_is_right(scripts, monkeypatch, tmp_path):
    import tune_kernels

    from proxima_kernels.configs import AttentionConfig, read_configs, rule_of_thumb

    monkeypatch.setattr(tune_kernels, "DECODES", [(40, 3)])
    rule = rule_of_thumb("decode", torch.bfloat16, 64)
    fast, late = AttentionConfig(kv_tile=32, lanes=16, num_warps=2), AttentionConfig(kv_tile=16, lanes=16)
    times = {rule: 9.0, fast: 4.0, late: 5.0}
    launched = []
    prepare = tune_kernels.prepare

    def noting(phase, problem, config, out):
        launched.append(config)
        return prepare(phase, problem, config, out)

    monkeypatch.setattr(tune_kernels, "prepare", noting)
    forever = time.monotonic() + 1e6
    entry = tune_kernels.entry("decode", (4, 2, 64), "cpu", lambda _: times[launched[-1]], forever, [fast, late])
    assert (entry["us"], entry["rule_us"], entry["tried"]) == (4.0, 9.0, 3)
    file = tmp_path / "device.json"
    file.write_text(json.dumps({"entries": [entry]}))
    assert read_configs(file) == {("decode", "bfloat16", 64, 2): fast}


@pytest.mark.slow
def test_what_was_tuned_for_a_device_is_used_on_it(scripts, monkeypatch, tmp_path):
    """The file goes where the kernels look for it; on another device, and for other shapes, they follow the rule."""
    import tune_kernels

    from proxima_kernels import configs

    monkeypatch.setattr(configs, "FOLDER", tmp_path / "configs")
    monkeypatch.setattr(tune_kernels, "MODELS", [(4, 2, 64)])
    monkeypatch.setattr(tune_kernels, "DECODES", [(40, 3)])
    monkeypatch.setattr(tune_kernels, "PREFILLS", [((20,), 20)])
    best = configs.AttentionConfig(kv_tile=32, num_warps=2)
    monkeypatch.setattr(tune_kernels, "candidates", lambda _: [best])
    launched = []
    prepare = tune_kernels.prepare
    monkeypatch.setattr(tune_kernels, "prepare", lambda *given: launched.append(given[2]) or prepare(*given))
    path = tune_kernels.tune("Made/Up 9000", "cpu", lambda _: 4.0 if launched[-1] == best else 9.0, minutes=60)
    assert path == tmp_path / "configs" / "Made_Up_9000.json"
    made = json.loads(path.read_text())
    assert (made["device"], made["made"]) == ("Made/Up 9000", "scripts/gpu/tune_kernels.py --minutes 60")
    assert any(version.startswith("triton=") for version in made["versions"])

    def config(device_name, head_size):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: device_name)
        return configs.config_for("decode", torch.bfloat16, head_size, 2, torch.device("cuda"))

    assert config("Made/Up 9000", 64) == best
    assert config("Made/Up 9000", 128) == configs.rule_of_thumb("decode", torch.bfloat16, 128)
    assert config("Made/Up 9001", 64) == configs.rule_of_thumb("decode", torch.bfloat16, 64)


def test_targets_are_judged_by_the_better_rival(scripts):
    import time_kernels

    def row(shape, implementation, us, share):
        return time_kernels.Row("decode", shape, "bfloat16", implementation, us, 1.0, share, None, "device", "")

    rows = [
        row("64 x 4k", "proxima", 10.0, 0.9),
        row("64 x 4k", "FlashInfer", 11.0, 0.8),
        row("64 x 4k", "FlashAttention", 9.0, 0.95),
        row("1 x 100k + 255 x 400", "proxima", 10.0, 0.5),
        row("1 x 100k + 255 x 400", "FlashInfer", 14.0, 0.4),
    ]
    rivals = "times as fast as the better of FlashAttention and FlashInfer"
    assert list(time_kernels.targets(rows)) == [
        "reached decode 64 x 4k, share of a copy's bandwidth: 0.90 (target 0.85)",
        f"MISSED  decode 64 x 4k, {rivals}: 0.90 (target 1.00)",
        f"reached decode 1 x 100k + 255 x 400, {rivals}: 1.40 (target 1.30)",
    ]


@pytest.mark.slow
def test_who_is_stopped_writes_what_was_timed(scripts, monkeypatch, tmp_path):
    import time_kernels

    def run(_device, _timer, _decodes, _prefills, rows, **_):
        rows.append(time_kernels.Row("copy", "1 GiB", "uint8", "torch", 1.0, 2.0, 1.0, None, "device", ""))
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    monkeypatch.setattr(time_kernels, "run", run)
    monkeypatch.setattr(sys, "argv", ["time_kernels.py", "--csv", str(tmp_path / "kernels.csv")])
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit, match="stopped; the rest was not timed"):
            time_kernels.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (tmp_path / "kernels.csv").read_text().splitlines()[1].startswith("copy,1 GiB")


@pytest.mark.slow
def test_rivals_are_called_as_the_pinned_versions_want(scripts):
    """They run on a GPU only; their signatures are here."""
    import problems
    import rivals
    import triton.testing
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention

    inspect.signature(triton.testing.do_bench_cudagraph).bind(None, rep=50, return_mode="median")
    problem = problems.make(problems.shrunk(problems.DECODES[1]), "cpu")
    called = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "vllm.v1.attention.ops.triton_unified_attention.unified_attention",
            lambda **given: called.append(inspect.signature(unified_attention).bind(**given)),
        )
        rivals.vllm_triton(problem)()
    assert called


@pytest.mark.slow
def test_tuning_says_that_there_is_no_gpu():
    run = subprocess.run(
        [sys.executable, SCRIPTS / "gpu" / "tune_kernels.py"],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(SCRIPTS / "gpu")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert "no GPU here; nothing was measured" in run.stderr
