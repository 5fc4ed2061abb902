"""Programs of Debian packages, unpacked beside the test instead of installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def unpack(package: str, cache: Path) -> None:
    """Put the files of a package below `cache`; skips the test where it is not to be had."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        pytest.skip(f"{package} is not installed, and this is no Debian to get it from")
    fetched = subprocess.run(["apt-get", "download", package], cwd=cache, capture_output=True, text=True, check=False)
    if fetched.returncode:
        pytest.skip(f"{package} is not installed and cannot be had: {fetched.stderr.strip()[-200:]}")
    (file,) = cache.glob(f"{package}_*.deb")
    subprocess.run(["dpkg", "--extract", file, cache], check=True)


def unpack_with_dependencies(package: str, cache: Path) -> None:
    """The same, with all that it needs and this machine has not installed."""
    if shutil.which("apt-get") is None:
        pytest.skip(f"{package} is not installed, and this is no Debian to get it from")
    plan = subprocess.run(
        ["apt-get", "install", "--simulate", "--no-install-recommends", package],
        capture_output=True,
        text=True,
        check=False,
    )
    if plan.returncode:
        pytest.skip(f"{package} is not installed and cannot be had: {plan.stderr.strip()[-200:]}")
    for line in plan.stdout.splitlines():
        action, _, rest = line.partition(" ")
        if action == "Inst":
            unpack(rest.split()[0], cache)
