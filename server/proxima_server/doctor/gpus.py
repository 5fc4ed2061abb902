"""Driver and GPUs, through NVML."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml

from proxima_server.doctor.finding import Finding, blocker, gib, ok, warning
from proxima_server.doctor.subject import Subject
from proxima_server.metrics.gpu import is_visible

# CUDA 13 knows no GPU before Turing.
_OLDEST = {13: (7, 5)}


def check_driver(subject: Subject) -> Iterator[Finding]:
    if subject.on_cpu:
        if any(Path("/dev").glob("nvidia[0-9]*")):
            yield warning("there is an NVIDIA GPU, but the engine for CPUs is installed", "make clean setup EXTRA=cuda")
        else:
            yield ok("not needed: the engine for CPUs is installed")
        return
    try:
        pynvml.nvmlInit()
        driver, cuda = pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlSystemGetCudaDriverVersion_v2()
    except pynvml.NVMLError as error:
        yield blocker(
            f"no NVIDIA driver: {error}",
            "install the driver; in a container start it with GPUs (docker run --gpus all, or the device plugin)",
        )
        return
    has, wants = cuda // 1000, subject.installed.torch_cuda
    if wants and int(wants.partition(".")[0]) > has:
        # Within one major version an older driver will do.
        yield blocker(
            f"driver {driver} is for CUDA {has}.{cuda % 1000 // 10}, torch is built for CUDA {wants}",
            f"update the NVIDIA driver to one for CUDA {wants.partition('.')[0]}",
        )
        return
    yield ok(f"NVIDIA {driver}, CUDA {has}.{cuda % 1000 // 10}")


def check_gpus(subject: Subject) -> Iterator[Finding]:
    if subject.on_cpu:
        yield ok("not needed: the engine for CPUs is installed")
        return
    if (shown := os.environ.get("CUDA_VISIBLE_DEVICES", "")).startswith("MIG-"):
        yield ok(f"{shown}, parts of GPUs, are not examined")
        return
    try:
        pynvml.nvmlInit()
        gpus = list(_visible())
    except pynvml.NVMLError as error:
        yield blocker(f"GPUs cannot be seen: {error}", "see the check of the driver")
        return
    problems = list(_too_few(subject, len(gpus)))
    for index, gpu in gpus[: subject.local_ranks]:
        problems += _problems(subject, index, gpu)
    yield from problems or [ok(", ".join(_described(index, gpu) for index, gpu in gpus))]


def _visible() -> Iterator[tuple[int, Any]]:
    for index in range(pynvml.nvmlDeviceGetCount()):
        gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = pynvml.nvmlDeviceGetUUID(gpu)
        if is_visible(str(index), uuid, os.environ.get("CUDA_VISIBLE_DEVICES")):
            yield index, gpu


def _too_few(subject: Subject, count: int) -> Iterator[Finding]:
    if count < subject.local_ranks:
        yield blocker(
            f"{count} GPUs for {subject.local_ranks} ranks",
            "lower --tensor-parallel-size, --pipeline-parallel-size or --data-parallel-size, or show this process "
            "more GPUs (CUDA_VISIBLE_DEVICES)",
        )


def _problems(subject: Subject, index: int, gpu: Any) -> Iterator[Finding]:
    oldest = _OLDEST.get(int((subject.installed.torch_cuda or "0").partition(".")[0]))
    capability = tuple(pynvml.nvmlDeviceGetCudaComputeCapability(gpu))
    if oldest and capability < oldest:
        yield blocker(
            f"{_name(index, gpu)} has compute capability {_dotted(capability)}, CUDA "
            f"{subject.installed.torch_cuda} wants {_dotted(oldest)} or more",
            "use a newer GPU",
        )
    memory = pynvml.nvmlDeviceGetMemoryInfo(gpu)
    wanted = subject.number("gpu_memory_utilization") * memory.total
    if memory.free < wanted:
        share = int(memory.free / memory.total * 100) / 100
        yield blocker(
            f"{_name(index, gpu)}: {gib(memory.free)} of {gib(memory.total)} are free, vLLM takes "
            f"{gib(wanted)} (gpu_memory_utilization)",
            f"end what else uses it (nvidia-smi), or --gpu-memory-utilization {share:g}",
        )
    elif 0 < memory.total * subject.local_ranks < subject.weights_bytes:
        yield blocker(
            f"the weights take {gib(subject.weights_bytes)}, {subject.local_ranks} GPUs have {gib(memory.total)} each",
            "a higher --tensor-parallel-size, or a quantised model",
        )


def _described(index: int, gpu: Any) -> str:
    memory = pynvml.nvmlDeviceGetMemoryInfo(gpu)
    return f"{_name(index, gpu)}, {gib(memory.free)} of {gib(memory.total)} free"


def _name(index: int, gpu: Any) -> str:
    return f"GPU {index} ({pynvml.nvmlDeviceGetName(gpu)})"


def _dotted(capability: tuple[int, ...]) -> str:
    return ".".join(map(str, capability))
