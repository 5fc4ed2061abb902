"""Our attention backend inside vLLM's own runner, on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).resolve().parents[1] / "support"


@pytest.mark.slow
def test_vllm_generates_the_same_with_our_backend(tiny_model):
    """Mixed steps, chunks of prompts, a shared prefix, and verification of drafted tokens."""
    command = [sys.executable, str(SUPPORT / "attention_in_vllm.py"), str(tiny_model)]
    environment = os.environ | {"PYTHONPATH": str(SUPPORT), "TRITON_INTERPRET": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-5000:]
    results = json.loads(run.stdout.split("RESULT ")[1])
    native = results.pop("native")
    assert native["layers"] == ["CPUAttentionBackendImpl"]
    for name, arm in results.items():
        assert arm["layers"] == ["ReferenceImpl" if name == "references" else "ProximaAttentionImpl"]
        assert arm["tokens"] == native["tokens"]
        for mine, theirs in zip(arm["logprobs"], native["logprobs"], strict=True):
            assert mine == pytest.approx(theirs, abs=1e-3)
