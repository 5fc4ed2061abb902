"""An NVIDIA driver's library that says what tests/support/fake_nvml.c says."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fake_nvml.c")
COMPILER = shutil.which("cc") or shutil.which("gcc")


def build(folder: Path) -> Path:
    """Put it into a folder for LD_LIBRARY_PATH; skips the test where there is no compiler."""
    if COMPILER is None:
        pytest.skip("there is no C compiler")
    command = [COMPILER, "-shared", "-fPIC", "-Wall", "-Werror", "-o", folder / "libnvidia-ml.so.1", SOURCE]
    subprocess.run(command, check=True)
    return folder
