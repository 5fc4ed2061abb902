"""The scripts that check, time and tune on a GPU: as far as they go without one."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def test_without_a_gpu_the_check_says_so_and_does_nothing(tmp_path):
    for tool in ("bash", "dirname", "head"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    out = tmp_path / "out"
    run = subprocess.run(
        [SCRIPTS / "gpu_check.sh"],
        env={"PATH": str(tmp_path), "OUT": str(out)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert run.stderr.startswith("gpu_check: no NVIDIA GPU here")
    assert "nothing was built, checked or timed" in run.stderr
    assert run.stdout == ""
    assert not out.exists()


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
    rows = time_kernels.run("cpu", ten_us, decodes, prefills, layers=2, blocks=1)
    time_kernels.write_csv(rows, tmp_path / "kernels.csv")
    time_kernels.plot(rows, tmp_path / "kernels.svg")
    table = list(csv.DictReader((tmp_path / "kernels.csv").read_text().splitlines()))
    timed = {(row["operation"], row["shape"], row["implementation"]) for row in table if row["us"]}
    assert ("decode", "2 x 40", "proxima") in timed
    assert ("decode", "ragged", "proxima, with write") in timed
    assert ("decode", "ragged", "SDPA, gathered") in timed
    assert ("prefill", "1 x 20", "proxima") in timed
    assert {"copy", "write_kv", "swap out", "swap in", "copy on write", "2 decodes beside swap out"} <= {
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
