"""`kernels` is a Hugging Face package that transformers looks for; our folder must never be taken for it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REPORT = "import importlib.util; print('found:', importlib.util.find_spec('kernels'))"
# What `python -m proxima_server` does, with the working directory first on the path, then a look around.
RUN_MODULE = f"""
import runpy, sys
sys.path.insert(0, {str(ROOT)!r})
sys.argv = ["proxima_server", "--version"]
try:
    runpy.run_module("proxima_server", run_name="__main__", alter_sys=True)
except SystemExit:
    pass
{REPORT}
"""
RUN_CONSOLE_SCRIPT = f"""
import sys
sys.path.insert(0, "")
from proxima_server.cli.main import main
try:
    main(["--version"])
except SystemExit:
    pass
{REPORT}
"""


def test_not_in_the_tests_themselves() -> None:
    assert importlib.util.find_spec("kernels") is None


@pytest.mark.parametrize(
    "program",
    [pytest.param(RUN_MODULE, id="python_-m_proxima_server"), pytest.param(RUN_CONSOLE_SCRIPT, id="proxima")],
)
def test_not_in_the_server_when_started_from_the_repository(program: str) -> None:
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env={}, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "found: None"


def test_not_under_python_m_pytest(tmp_path: Path) -> None:
    probe = ROOT / "tests" / "unit" / "test_import_path.py"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{probe}::test_not_in_the_tests_themselves"],
        cwd=ROOT,
        env={"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout
