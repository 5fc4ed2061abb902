"""What the user has fixed, and where the search begins because of that and of this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from proxima_bench.machine import Gpu, gpus
from proxima_bench.tune.batch_defaults import batch_defaults
from proxima_bench.tune.configuration import SCHEDULER
from proxima_bench.tune.search import KV_BYTES, UTILISATION, Start
from proxima_config import arguments, hardware, vllm_flags
from proxima_config.command_parser import CommandParser
from proxima_config.errors import UsageError
from proxima_config.settings import ProximaSettings
from proxima_config.tree import ENGINE

_ENGINE = f"{ENGINE}."


@dataclass(frozen=True)
class Given:
    settings: Mapping[str, JsonValue]
    """By dotted name: flags after --, read as `proxima serve` reads them."""
    preset: str | None
    effective: ProximaSettings
    """With what preset, environment and hardware bring."""

    @property
    def model(self) -> str:
        return self.effective.model


def given_settings(model: str | None, words: Sequence[str]) -> Given:
    """Raises ConfigError or UsageError that names the flag."""
    parser = CommandParser(prog="proxima tune --")
    arguments.add_arguments(parser)
    options = parser.parse_args([*words, *([f"--model={model}"] if model else [])])
    if options.config is not None:
        raise UsageError("--config is not for tune: give what it holds as flags after --")
    loaded = arguments.load(options)
    values = arguments.cli_values(options)
    if SCHEDULER in values:
        raise UsageError("--scheduler is one of the things that tune tries: leave it out")
    names = [name for name in values if name != "model"]
    settings = {name: _value(loaded.settings, name) for name in names}
    return Given(settings, options.preset, loaded.settings)


def start_of(given: Given, in_flight: int | None, *, quick: bool) -> Start:
    machine, engine = hardware.detect(), given.effective.engine
    ranks = _number(engine.get("tensor_parallel_size"), 1) * _number(engine.get("pipeline_parallel_size"), 1)
    throughput = engine.get("performance_mode") == "throughput"
    # One that nvidia-smi does not tell counts as small, as it does for vLLM.
    gpu = next(iter(gpus()), Gpu("", 0)) if machine.has_gpu else None
    batch = batch_defaults(gpu, world_size=ranks, throughput=throughput)
    kv_bytes = engine.get("kv_cache_memory_bytes")
    share = engine.get("gpu_memory_utilization", vllm_flags.find("gpu_memory_utilization").default)
    memory, value = (KV_BYTES, kv_bytes) if isinstance(kv_bytes, int) else (UTILISATION, share)
    return Start(
        max_num_batched_tokens=_number(engine.get("max_num_batched_tokens"), batch.max_num_batched_tokens),
        max_num_seqs=_number(engine.get("max_num_seqs"), batch.max_num_seqs),
        in_flight=in_flight,
        memory=memory,
        memory_value=float(value),  # type: ignore[arg-type]
        kv_dtypes=("fp8",) if machine.has_gpu or "avx512f" in machine.cpu_flags else (),
        # Compiled bfloat16 gives wrong text in the CPU build; compiled float32 is right.
        compile=not machine.has_gpu and engine.get("enforce_eager") is True and engine.get("dtype") == "float32",
        quick=quick,
    )


def _value(settings: ProximaSettings, name: str) -> JsonValue:
    if name.startswith(_ENGINE):
        return settings.engine[name.removeprefix(_ENGINE)]
    found: object = settings
    for part in name.split("."):
        found = getattr(found, part)
    return found  # type: ignore[return-value]


def _number(value: JsonValue, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default
