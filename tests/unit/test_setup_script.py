"""`make setup` on machines where it cannot work: one clear line and a non-zero exit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SETUP = ROOT / "scripts" / "setup.py"
TORCH_INDEX = ["--torch-index", "http://127.0.0.1:9"]


def run_patched(patch: str, venv: Path) -> subprocess.CompletedProcess[str]:
    """The script with something about the machine changed first."""
    program = f"import sys, shutil, runpy\n{patch}\nrunpy.run_path(sys.argv[0], run_name='__main__')"
    bootstrap = f"import sys; sys.argv = [{str(SETUP)!r}, '--venv', {str(venv)!r}, *{TORCH_INDEX!r}]\n{program}"
    return subprocess.run([sys.executable, "-c", bootstrap], capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("patch", "says"),
    [
        pytest.param("sys.version_info = (3, 9, 2, 'final', 0)", "needs Python 3.11, but", id="python_too_old"),
        pytest.param("sys.version_info = (3, 14, 0, 'final', 0)", "needs Python 3.11, but", id="python_too_new"),
        pytest.param(
            "shutil.disk_usage = lambda path: shutil._ntuple_diskusage(100, 99, int(1.5e9))",
            "needs 5 GB of free disk",
            id="disk_full",
        ),
    ],
)
def test_a_machine_that_cannot_is_told_why_in_one_line(patch: str, says: str, tmp_path: Path) -> None:
    run = run_patched(patch, tmp_path / "venv")
    assert run.returncode == 1
    assert len(run.stderr.strip().splitlines()) == 1
    assert run.stderr.startswith("proxima setup: ")
    assert says in run.stderr
    assert not (tmp_path / "venv").exists()


def test_the_installed_environment_needs_nothing_more() -> None:
    make = ["make", "--no-print-directory", "setup", f"VENV={sys.prefix}"]
    run = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_without_any_python_make_says_what_is_missing(tmp_path: Path) -> None:
    make = [shutil.which("make") or "make", "--no-print-directory", "setup", "PYTHON="]
    run = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode != 0
    assert run.stderr.splitlines()[0] == "proxima setup: no python3 found; install Python 3.11"


@pytest.mark.slow
def test_without_network_the_index_is_named_as_the_cause(tmp_path: Path) -> None:
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": ""}
    run = subprocess.run(
        [sys.executable, SETUP, "--venv", tmp_path / "venv", *TORCH_INDEX],
        env={**os.environ, **nowhere, "PIP_CONFIG_FILE": os.devnull},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert run.returncode == 1
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith("proxima setup: cannot install uv")
    assert "no network" in last
