"""`make figures`: README and its pictures show what is kept under docs/benchmarks."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def readme_figures():
    return script("readme_figures")


def test_readme_has_the_figures_of_the_results(readme_figures):
    text = (ROOT / "README.md").read_text()
    assert "docs/benchmarks/overload-cpu.json" in text
    assert readme_figures.rewritten(text) == text


def figure(base, arm, ratio=None):
    return {"median": base}, {"median": arm, "ratio": ratio and dict(zip(("value", "low", "high"), ratio, strict=True))}


def test_rows_are_written_from_the_comparison_they_link_to(readme_figures, tmp_path):
    (tmp_path / "docs/benchmarks").mkdir(parents=True)
    found = {
        "attainment": figure(0.5, 0.75, (1.5, 1.2, 1.8)),
        "ttft_s.mean": figure(1.234, 2.345, (1.9, 1.5, 2.1)),
        "qps": figure(123.4, 120.0, (0.97, 0.9, 1.1)),
        "preemptions": figure(47, 0),
    }
    arms = {
        "native": {key: each[0] for key, each in found.items()},
        "proxima": {key: each[1] for key, each in found.items()},
    }
    result = {
        "rounds": 5,
        "baseline": "native",
        "arms": [{"name": name} for name in arms],
        "cases": [{"name": "", "arms": arms}],
    }
    (tmp_path / "docs/benchmarks/x.json").write_text(json.dumps(result))
    stale = """\
| preset | figure | native | proxima | ratio |
|---|---|---:|---:|---:|
| `other` | attained | 0.1 | 0.2 | 2 |
| [`mine`](docs/benchmarks/x.json) (commit a) | attained: TTFT | 0.1 | 0.2 | 2 |
| **where we lose:** `mine` | TTFT mean, s | 1 | 2 | 3 |
| | requests/s | 1 | 2 | 3 |
| | preemptions | 1 | 2 | 3 |
| `third` | attained | 0.1 | 0.2 | 2 |
"""
    assert readme_figures.rewritten(stale, tmp_path).splitlines()[2:] == [
        "| `other` | attained | 0.1 | 0.2 | 2 |",
        "| [`mine`](docs/benchmarks/x.json) (commit a) | attained: TTFT | 0.50 | 0.75 | **1.50** [1.20, 1.80] |",
        "| **where we lose:** `mine` | TTFT mean, s | 1.23 | 2.35 | *1.90* [1.50, 2.10] |",
        "| | requests/s | 123 | 120 | 0.97 [0.90, 1.10] |",
        "| | preemptions | 47 | 0 | |",
        "| `third` | attained | 0.1 | 0.2 | 2 |",
    ]
    (tmp_path / "docs/benchmarks/x.json").write_text(json.dumps({**result, "rounds": 3}))
    few = readme_figures.rewritten(stale, tmp_path)
    assert "| 0.50 | 0.75 | 1.50 [1.20, 1.80] |" in few
    assert "| 1.23 | 2.35 | 1.90 [1.50, 2.10] |" in few
    other = {**arms["proxima"], "qps": figure(0, 240)[1]}
    loads = [{"name": "0.8x", "arms": arms}, {"name": "1.5x", "arms": {**arms, "other": other}}]
    (tmp_path / "docs/benchmarks/x.json").write_text(json.dumps({**result, "cases": loads}))
    several = readme_figures.rewritten(stale.replace("x.json)", "x.json#other@1.5x)"), tmp_path)
    assert "| | requests/s | 123 | 240 | |" in several


def test_the_picture_is_that_of_the_results(tmp_path, monkeypatch):
    pictures = script("benchmark_pictures")
    monkeypatch.setattr(pictures, "FOLDER", tmp_path)
    pictures.measured()
    assert (tmp_path / "measured.svg").read_bytes() == (ROOT / "docs/pictures/measured.svg").read_bytes()
