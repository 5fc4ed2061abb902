"""Defaults and fixes for vLLM's CPU build (docs/decisions/0004-cpu-platform-defaults.md has the measurements).

vLLM reserves one core for its scheduler process and binds the workers to the rest; on two cores half the machine then
idles. A pinned worker also starves beside another busy one pinned to the same cores. Its CPU worker wants Intel's
OpenMP runtime preloaded, which has to be in the environment before the engine processes start.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from ctypes.util import find_library
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from proxima_config.errors import ConfigError

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = logging.getLogger(__name__)

_IOMP = Path(sys.prefix) / "lib" / "libiomp5.so"
# By its path: vLLM's CPU platform replaces the short name `uni`, because it sets OpenMP up for each worker process.
# What is set here is set for all processes.
ONE_PROCESS_EXECUTOR = "vllm.v1.executor.uniproc_executor.UniProcExecutor"


def apply_defaults(engine: Mapping[str, object], environ: MutableMapping[str, str] = os.environ) -> None:
    """Set what the engine processes inherit; variables the user has set win."""
    environ.update(defaults_here(engine, environ))


def defaults_here(engine: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that ``apply_defaults`` sets on this machine."""
    cpus = sorted(os.sched_getaffinity(0))
    return defaults(
        engine, environ, cpus=cpus, numa_nodes=numa_nodes(), quota=cpu_quota(), libraries=present_libraries()
    )


def executor(engine: Mapping[str, object], environ: Mapping[str, str] = os.environ) -> str | None:
    """The executor for a single rank: the worker computes inside the engine core. None leaves the choice to vLLM.

    Between two processes the engine core spins on shared memory while the worker computes, on a core that the worker
    could use. Threads that are pinned to cores need a process for each rank.
    """
    chosen = engine.get("distributed_executor_backend")
    if chosen is not None or _local_ranks(engine) > 1 or environ.get("VLLM_CPU_OMP_THREADS_BIND") != "nobind":
        return None
    return ONE_PROCESS_EXECUTOR


def present_libraries() -> list[str]:
    """The libraries vLLM's CPU guide wants preloaded, as far as this machine has them."""
    malloc = _find("tcmalloc_minimal") or _find("tcmalloc")
    openmp = [str(_IOMP)] if _IOMP.exists() else []
    return [*([malloc] if malloc else []), *openmp]


def _find(name: str) -> str | None:
    try:
        return find_library(name)
    except OSError:
        # It asks the compiler, and takes the linker's complaint about a wrong LD_PRELOAD for the answer.
        return None


def defaults(
    engine: Mapping[str, object],
    environ: Mapping[str, str],
    *,
    cpus: Sequence[int],
    numa_nodes: int,
    quota: float | None,
    libraries: Sequence[str],
) -> dict[str, str]:
    """The variables to set.

    ``cpus`` are the ids this process may use, ``quota`` is the number of CPUs its cgroup pays for, ``libraries`` are
    those to preload.
    """
    chosen = _threads(_local_ranks(engine), cpus, numa_nodes, quota)
    if "VLLM_CPU_OMP_THREADS_BIND" in environ:
        chosen = {}
    chosen["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "0"
    chosen = {name: value for name, value in chosen.items() if name not in environ}
    own = [entry for entry in environ.get("LD_PRELOAD", "").replace(" ", ":").split(":") if entry]
    kinds = {_kind(entry) for entry in own}
    if added := [library for library in libraries if _kind(library) not in kinds]:
        chosen["LD_PRELOAD"] = ":".join([*own, *added])
    return chosen


def _threads(ranks: int, cpus: Sequence[int], numa_nodes: int, quota: float | None) -> dict[str, str]:
    limited = quota is not None and quota < len(cpus)
    if not limited and (ranks > 1 or numa_nodes > 1):
        # Memory is near only to some cores, or ranks must keep out of each other's way.
        return {"VLLM_CPU_OMP_THREADS_BIND": _binding(cpus, ranks)}
    usable = int(quota) if limited and quota is not None else len(cpus)
    return {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(max(1, usable // ranks)),
        # What vLLM sets when it pins: a thread without work sleeps after 5 ms instead of spinning for 200.
        "KMP_BLOCKTIME": "5",
        "KMP_TPAUSE": "0",
    }


def numa_nodes(root: Path = Path("/sys/devices/system/node")) -> int:
    """Memory nodes of this machine; 1 where it does not say."""
    return max(1, len(list(root.glob("node[0-9]*"))))


def _kind(library: str) -> str:
    """What only one of may be loaded: an OpenMP runtime, an allocator."""
    name = Path(library).name
    if name.startswith(("libiomp", "libomp", "libgomp")):
        return "openmp"
    return "malloc" if name.startswith(("libtcmalloc", "libjemalloc", "libmimalloc")) else name


def _binding(cpus: Sequence[int], ranks: int) -> str:
    """vLLM's notation: CPU ids of each rank, ranks separated by `|`. With more ranks than CPUs some share one."""
    shares = [list(cpus[rank::ranks]) or [cpus[rank % len(cpus)]] for rank in range(ranks)]
    return "|".join(",".join(map(str, share)) for share in shares)


def _local_ranks(engine: Mapping[str, object]) -> int:
    ranks = 1
    for key in (
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "prefill_context_parallel_size",
        "data_parallel_size",
    ):
        # Ranks of decode context parallelism are those of the tensors.
        value = engine.get(key)
        ranks *= value if isinstance(value, int) else 1
    return max(1, ranks)


def cpu_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """CPUs the cgroup may use per second of wall time (v2, then v1), None when unlimited."""
    try:
        if (v2 := root / "cpu.max").exists():
            limit, period = v2.read_text().split()
        else:
            limit = (root / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu" / "cpu.cfs_period_us").read_text().strip()
    except (OSError, ValueError):
        return None
    return None if limit == "max" or int(limit) <= 0 else int(limit) / int(period)


@dataclass(frozen=True)
class Numerics:
    """What vLLM finally made of flags and model, as far as it decides whether the text comes out right."""

    dtype: str
    compiled: bool
    tensor_parallel_size: int
    quantization: str | None

    @classmethod
    def of(cls, vllm_config: VllmConfig) -> Numerics:
        from vllm.config import CompilationMode

        return cls(
            dtype=str(vllm_config.model_config.dtype).removeprefix("torch."),
            compiled=vllm_config.compilation_config.mode != CompilationMode.NONE,
            tensor_parallel_size=vllm_config.parallel_config.tensor_parallel_size,
            quantization=vllm_config.model_config.quantization,
        )


def refuse_known_bad(numerics: Numerics, cpu_flags: frozenset[str]) -> None:
    """Raise ConfigError for combinations that are known to crash or to give wrong text on this platform.

    ``cpu_flags`` are those of /proc/cpuinfo.
    """
    refuse_quantization(numerics.quantization)
    if numerics.dtype != "bfloat16":
        return
    if numerics.compiled:
        raise ConfigError(
            "bfloat16 compiled by torch.compile gives wrong text on CPU; "
            "set engine.enforce_eager=true or engine.dtype=float32"
        )
    if numerics.tensor_parallel_size > 1:
        raise ConfigError(
            f"bfloat16 with engine.tensor_parallel_size={numerics.tensor_parallel_size} gives wrong text on CPU; "
            "set engine.dtype=float32"
        )
    if "sse2" in cpu_flags and "avx512f" not in cpu_flags:
        logger.warning("bfloat16 is eight times slower than float32 on a CPU without AVX-512; set engine.dtype=float32")


def refuse_quantization(method: object) -> None:
    """Also called with the flag alone: vLLM's own complaint, about the dtype, comes first and leads astray."""
    if method == "fp8":
        raise ConfigError(
            "engine.quantization=fp8 does not work on CPU; leave it out, or use int8_per_channel_weight_only"
        )
