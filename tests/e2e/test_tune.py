"""`proxima tune` and `proxima bench profile` with real engines of a tiny model."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import time

import psutil
import pytest
from gateway_process import PROXIMA, START_TIMEOUT_S

from proxima_config.layering import load_settings
from proxima_server.cli.main import main

pytestmark = [pytest.mark.engine, pytest.mark.slow]

# All that a search would try, so that what is left are the two schedulers.
ENGINE = ["--max-model-len", "512", "--max-num-batched-tokens", "512", "--max-num-seqs", "8"]
ENGINE += ["--enforce-eager", "--kv-cache-dtype", "auto"]
LOAD = ["--requests", "6", "--warmup", "1", "--concurrency", "6", "--input-tokens", "40"]
LOAD += ["--output-tokens", "24", "--cap-tokens", "64"]


def servers(model) -> list[psutil.Process]:
    return [
        each for each in psutil.process_iter(["cmdline"]) if {"serve", str(model)} <= set(each.info["cmdline"] or [])
    ]


def runs(process: psutil.Process) -> bool:
    """Whether it has not ended; nobody may be there to reap it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_one_that_is_killed_goes_on_and_writes_what_serve_takes(tiny_model, tmp_path):
    out, trials, logs = tmp_path / "tuned.yaml", tmp_path / "tuned.trials.json", tmp_path / "logs"
    given = [*ENGINE, "--kv-cache-memory-bytes", "100000000"]
    command = [PROXIMA, "tune", "--quick", "--model", tiny_model, "--out", out, "--logs", logs, "--rounds", "1", *LOAD]
    command = [*map(str, command), "--", *given]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as first:
        deadline = time.monotonic() + START_TIMEOUT_S
        # In the middle of the second trial.
        while not trials.exists() and first.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
        while not servers(tiny_model) and first.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        started = psutil.Process(first.pid).children(recursive=True)
        os.kill(first.pid, signal.SIGKILL)
    (known,) = json.loads(trials.read_text())["tune"]["trials"]
    assert known.startswith("native ")
    # What it had started ends with it.
    assert started
    deadline = time.monotonic() + 60
    while (alive := [each for each in started if runs(each)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive

    second = subprocess.run(command, capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False)
    assert second.returncode == 0, second.stderr
    assert "going on with 1 trials" in second.stderr
    assert second.stderr.count("trying ") == 1
    # Who is faster here is chance.
    assert "proxima serve" in second.stdout
    assert f"wrote {out}" in second.stdout
    settings = load_settings(environ={}, config_file=out).settings
    assert (settings.model, settings.engine["max_num_seqs"]) == (str(tiny_model), 8)
    assert main(["config", "check", str(out)]) == 0
    assert not servers(tiny_model)


def test_memory_that_is_not_there_is_told_from_a_crash(tiny_model, tmp_path, capsys):
    """The real engine's own words for it."""
    impossible = ["--", *ENGINE, "--kv-cache-memory-bytes", str(1 << 50)]
    flags = ["--model", str(tiny_model), "--out", str(tmp_path / "t.yaml")]
    assert main(["tune", "--quick", *flags, *LOAD, *impossible]) == 1
    assert "failed (out_of_memory): " in capsys.readouterr().err


def test_a_profile_shows_the_steps_of_a_real_engine(tiny_model, tmp_path, capsys):
    load = ["--requests", "200", "--concurrency", "8", "--warmup", "1", "--input-tokens", "40", "--output-tokens", "60"]
    load += ["--cap-tokens", "64"]
    flags = ["--model", str(tiny_model), "--arms", "proxima", "--duration-s", "1", "--after-s", "1", "--json"]
    flags += ["--out", str(tmp_path), "--preset", "throughput"]
    engine = [*ENGINE, "--kv-cache-memory-bytes", "100000000"]
    assert main(["bench", "profile", *flags, *load, "--", *engine]) == 0
    result = json.loads(capsys.readouterr().out)
    capture = result["captures"]["proxima"]
    assert len(capture["steps"]) > 3
    assert max(step["decodes"] for step in capture["steps"]) > 1
    (trace,) = [name for name in result["files"]["proxima"] if ".trace.json" in name]
    with gzip.open(trace) as file:
        assert json.load(file)["traceEvents"]
    assert (tmp_path / "profile.html").read_text().count("<svg") == 1
    assert not servers(tiny_model)
