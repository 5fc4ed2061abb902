"""Two minutes of `make soak`, on a model that answers fast."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "soak.py"


@pytest.mark.engine
@pytest.mark.slow
def test_two_minutes_of_requests_that_end_in_every_way_leave_nothing_behind(tiny_model):
    flags = ["--preset", "cpu", "--kv-cache-memory-bytes", "20000000", "--max-model-len", "1024"]
    soak = subprocess.run(
        [sys.executable, SCRIPT, str(tiny_model), "--minutes", "2", "--", *flags],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [json.loads(line) for line in soak.stdout.splitlines()]
    assert soak.returncode == 0, soak.stdout + soak.stderr
    outcomes, rests = lines[-1]["outcomes"], lines[1:-1]
    assert len(rests) >= 4
    assert rests[-1]["requests"] > 500
    assert outcomes["status 200"] > 100
    assert outcomes["status 400"] > 0
    assert outcomes["left"] > 50
    assert outcomes["left in the middle"] > 0
