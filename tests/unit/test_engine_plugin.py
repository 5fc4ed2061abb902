"""Engine processes live and die with the gateway, and leave Ctrl-C to it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

SUPPORT = Path(__file__).parents[1] / "support"
# A gateway that starts an engine process and then waits to be killed.
GATEWAY = """
import multiprocessing, signal
from fake_engine import engine_main
if __name__ == "__main__":
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    engine = multiprocessing.get_context("spawn").Process(target=engine_main, args=(theirs, "ready"), name="EngineCore")
    engine.start()
    ours.recv()
    print(engine.pid, flush=True)
    signal.pause()
"""


@pytest.fixture
def engine(tmp_path) -> Iterator[tuple[subprocess.Popen[str], psutil.Process]]:
    """The gateway and its engine process."""
    script = tmp_path / "gateway.py"
    script.write_text(GATEWAY)
    environ = os.environ | {"PROXIMA_ENGINE_DIRECTORY": str(tmp_path), "PYTHONPATH": str(SUPPORT)}
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, env=environ) as gateway:
        process = psutil.Process(int(gateway.stdout.readline()))
        left = [process, *process.children()]
        yield gateway, process
        gateway.kill()
    for each in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()


def test_an_engine_does_not_outlive_a_killed_gateway(engine):
    gateway, process = engine
    gateway.kill()
    gone, _ = psutil.wait_procs([process], timeout=30)
    assert gone == [process]


def test_ctrl_c_is_left_to_the_gateway(engine):
    _, process = engine
    status = Path(f"/proc/{process.pid}/status").read_text()
    ignored = next(line for line in status.splitlines() if line.startswith("SigIgn:")).split()[1]
    assert int(ignored, 16) & (1 << (signal.SIGINT - 1))


def test_other_programs_that_use_vllm_are_left_alone():
    code = (
        "import logging; from proxima_engine.plugin import register; register(); "
        "print(logging.getLogger('vllm').handlers)"
    )
    environ = {name: value for name, value in os.environ.items() if name != "PROXIMA_ENGINE_DIRECTORY"}
    assert subprocess.check_output([sys.executable, "-c", code], text=True, env=environ).strip() == "[]"
