"""The room itself: importable without vLLM, and its generated pages fresh."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_VLLM = """
import importlib, pkgutil, sys
for name in ("vllm", "torch", "transformers"):
    sys.modules[name] = None  # importing it raises ImportError
import proxima_config
for module in pkgutil.walk_packages(proxima_config.__path__, "proxima_config."):
    importlib.import_module(module.name)
from proxima_config.layering import load_settings
from proxima_config.vllm_flags import to_argv
print(to_argv(load_settings(environ={}, cli={"engine.max_num_seqs": "8"}, preset="gpu").settings.engine))
"""


def test_every_module_works_without_vllm_and_torch():
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_VLLM], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "--max-num-seqs=8" in result.stdout


def test_the_generated_pages_are_fresh():
    command = [sys.executable, str(ROOT / "scripts" / "generate_docs.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr


def test_a_stale_page_is_named(tmp_path):
    docs = tmp_path / "docs"
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    shutil.copytree(ROOT / "docs" / "decisions", docs / "decisions")
    for read in ("tests", "pyproject.toml"):
        (tmp_path / read).symlink_to(ROOT / read)
    script = tmp_path / "scripts" / "generate_docs.py"
    (docs / "configuration.md").write_text("old\n")
    command = [sys.executable, str(script)]
    stale = subprocess.run([*command, "--check"], capture_output=True, text=True, timeout=60, check=False)
    assert stale.returncode == 1
    assert "docs/configuration.md is stale: run `make docs`" in stale.stderr
    assert subprocess.run(command, timeout=60, check=False).returncode == 0
    assert subprocess.run([*command, "--check"], timeout=60, check=False).returncode == 0
