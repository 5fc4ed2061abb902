"""Processor and memory of the host, and the libraries that vLLM's CPU build wants preloaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

from proxima_engine import platform_cpu
from proxima_server.doctor.finding import Finding, blocker, gib, ok, warning
from proxima_server.doctor.subject import Subject

# Interpreters, libraries and buffers of gateway and engine on a CPU, without weights and KV cache.
_ENGINE_BYTES = 3 << 30


def check_cpu(subject: Subject) -> Iterator[Finding]:
    flags = subject.hardware.cpu_flags
    cores = f"{subject.hardware.cores} cores"
    if not subject.on_cpu:
        yield ok(cores)
    elif "sse2" not in flags:
        yield ok(f"{cores}, not x86")
    elif "avx2" not in flags:
        yield blocker(
            "this CPU has no AVX2, which vLLM's build for CPUs needs",
            "another machine; in a virtual machine pass the host's CPU through",
        )
    elif "avx512f" in flags:
        more = [name for flag, name in (("avx512_bf16", "bfloat16"), ("amx_tile", "AMX")) if flag in flags]
        yield ok(", ".join([cores, "AVX-512", *more]))
    elif subject.flag("dtype") in ("bfloat16", "auto"):
        yield warning(
            "bfloat16 is eight times slower than float32 on a CPU without AVX-512", "leave --dtype out, or float32"
        )
    else:
        yield ok(f"{cores}, AVX2 without AVX-512: computes in {subject.flag('dtype')}")


def check_memory(subject: Subject) -> Iterator[Finding]:
    """Whether weights and KV cache fit into the host's memory, as vLLM will check when it starts."""
    memory = psutil.virtual_memory()
    total = subject.hardware.memory_bytes
    # In a container the limit counts, not what the host has.
    free = min(memory.available, total)
    described = f"{gib(free)} of {gib(total)} free"
    if not subject.on_cpu:
        yield ok(described)
        return
    kv_bytes = subject.number("kv_cache_memory_bytes")
    needed = kv_bytes + subject.weights_bytes + _ENGINE_BYTES
    if kv_bytes > free:
        yield blocker(f"{described}, --kv-cache-memory-bytes asks for {gib(kv_bytes)}", "lower it, or free memory")
    elif kv_bytes and needed > free:
        yield warning(
            f"{described}; KV cache {gib(kv_bytes)}, weights {gib(subject.weights_bytes)} and the engine's processes "
            f"take about {gib(needed)}",
            "lower --kv-cache-memory-bytes, or free memory",
        )
    elif not kv_bytes and free < (wanted := subject.number("gpu_memory_utilization") * total):
        yield blocker(
            f"{described}; without --kv-cache-memory-bytes vLLM takes {gib(wanted)} (gpu_memory_utilization)",
            "set --kv-cache-memory-bytes, for example 4G",
        )
    else:
        yield ok(described)


def check_preload(subject: Subject) -> Iterator[Finding]:
    """What will be preloaded into the engine's processes: our own, and what the user named."""
    if not subject.on_cpu:
        yield ok("not needed on a GPU")
        return
    own = [entry for entry in subject.environ.get("LD_PRELOAD", "").replace(" ", ":").split(":") if entry]
    present = platform_cpu.present_libraries()
    problems = list(_preload_problems(own, [*own, *present], x86="sse2" in subject.hardware.cpu_flags))
    yield from problems or [ok(", ".join(Path(library).name for library in [*own, *present]))]


def _preload_problems(own: list[str], libraries: list[str], *, x86: bool) -> Iterator[Finding]:
    for library in own:
        if "/" in library and not Path(library).exists():
            yield warning(f"LD_PRELOAD names {library}, which does not exist", "correct LD_PRELOAD")
    if _any(own, "libiomp", "libomp") and _any(own, "libgomp"):
        yield blocker("LD_PRELOAD names two OpenMP runtimes; vLLM then refuses to start", "leave only one of them")
    if not _any(libraries, "libtcmalloc", "libjemalloc", "libmimalloc"):
        yield warning(
            "tcmalloc is missing; without it allocations take longer",
            "Debian, Ubuntu: apt-get install libtcmalloc-minimal4",
        )
    if x86 and not _any(libraries, "libiomp", "libomp", "libgomp"):
        yield warning("Intel's OpenMP runtime is missing; vLLM is slower without it", "pip install intel-openmp")


def _any(libraries: list[str], *names: str) -> bool:
    return any(Path(library).name.startswith(names) for library in libraries)
