"""`scripts/gpu_check.sh` from beginning to end without a GPU: minutes on one shall not be lost to a slip of a script.

Its last stage is our attention backend inside vLLM's own runner, on the CPU.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "gpu_check.sh"


def test_without_a_gpu_the_check_says_so_and_does_nothing(tmp_path):
    for tool in ("bash", "dirname", "head"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    out = tmp_path / "out"
    run = subprocess.run(
        [SCRIPT], env={"PATH": str(tmp_path), "OUT": str(out)}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    assert run.stderr.startswith("gpu_check: no NVIDIA GPU here")
    assert "nothing was built, checked or timed" in run.stderr
    assert run.stdout == ""
    assert not out.exists()


def test_a_dry_run_never_writes_among_the_benchmarks():
    run = subprocess.run(
        [SCRIPT, "--dry-run"], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    assert run.stderr.startswith("gpu_check: --dry-run writes times that mean nothing: set OUT")


@pytest.fixture(scope="module")
def dry_run(tmp_path_factory):
    """What it printed and wrote."""
    out = tmp_path_factory.mktemp("out")
    environment = os.environ | {"PYTHON": sys.executable, "OUT": str(out)}
    run = subprocess.run([SCRIPT, "--dry-run"], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-5000:]
    return run.stdout, out


@pytest.mark.slow
def test_all_checks_pass(dry_run):
    printed, _ = dry_run
    stages = [line for line in printed.splitlines() if line.startswith("== ")]
    assert len(stages) == 3
    assert printed.count("\nok ") == 18
    assert "FAILED" not in printed


@pytest.mark.slow
def test_the_table_has_each_operation_on_each_shape(dry_run):
    printed, out = dry_run
    assert {path.name for path in out.iterdir()} == {"kernels-dry_run.csv", "kernels-dry_run.svg"}
    table = list(csv.DictReader((out / "kernels-dry_run.csv").read_text().splitlines()))
    timed = {(row["operation"], row["shape"], row["implementation"]) for row in table if row["us"]}
    assert len([row for row in timed if row[0] == "decode" and row[2].startswith("proxima")]) == 2 * 7
    assert len([row for row in timed if row[0] == "prefill" and row[2] == "proxima"]) == 2
    assert ("decode", "64 x 4k, fp8", "SDPA, gathered") in timed
    moves = {"copy", "write_kv", "swap out", "swap in", "copy on write", "--swap out", "--swap in"}
    assert moves <= {operation for operation, _, _ in timed}
    # What is compared stands together, though it was timed at another time.
    places = [(row["operation"], row["shape"]) for row in table]
    assert len(list(dict.fromkeys(places))) == len(
        [1 for a, b in zip(places, [*places[1:], None], strict=True) if a != b]
    )
    assert {row["note"].split(":")[0] for row in table if not row["us"]} <= {
        "ModuleNotFoundError",
        "ImportError",
        "ValueError",
        "AttributeError",
        "TypeError",
        "RuntimeError",
    }
    assert "share of a copy's bandwidth" in printed
    assert "<svg" in (out / "kernels-dry_run.svg").read_text()


@pytest.mark.slow
def test_vllm_generates_the_same_with_our_backend(dry_run):
    """Mixed steps, chunks of prompts, a shared prefix, verification of drafted tokens, requests that are swapped."""
    results = json.loads(dry_run[0].split("RESULT ")[1].splitlines()[0])
    native = results.pop("native")
    assert native["layers"] == ["CPUAttentionBackendImpl"]
    assert set(results) == {"references, swapped", "kernels, speculative"}
    for name, arm in results.items():
        assert arm["layers"] == ["ReferenceImpl" if "references" in name else "ProximaAttentionImpl"]
        assert arm["tokens"] == native["tokens"]
        for mine, theirs in zip(arm["logprobs"], native["logprobs"], strict=True):
            assert mine == pytest.approx(theirs, abs=1e-3)
    assert results["references, swapped"]["loaded_blocks"] > 0
