"""Builds the settings from their layers, and remembers where each value came from.

    command line  >  environment  >  file  >  preset  >  hardware  >  default

A layer replaces whole values: a JSON flag set in the file is not merged with the preset's. Every layer is checked
completely, so that a mistake is reported even where a higher layer hides it, and all mistakes are reported at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from proxima_config import presets, vllm_flags
from proxima_config.errors import ConfigError
from proxima_config.hardware import Hardware, detect
from proxima_config.masking import shown
from proxima_config.nearest import nearest
from proxima_config.settings import ProximaSettings
from proxima_config.tree import ENGINE, ENV_DELIMITER, ENV_PREFIX, env_name, keys, sections
from proxima_config.yaml_file import FileValue, read_file

CLI_ORIGIN = "command line"
DEFAULT_ORIGIN = "default"
MAX_MODEL_LEN = "engine.max_model_len"
# Words that choose layers and are no settings themselves.
PRESET = "preset"
CONFIG = "config"


@dataclass(frozen=True)
class LoadedSettings:
    """Settings with the origin of every key of the tree and of every vLLM flag that is set.

    An origin starts with ``command line``, ``environment NAME``, ``file PATH:LINE``, ``preset NAME``, ``hardware``
    or ``default``.
    """

    settings: ProximaSettings
    origins: Mapping[str, str]
    preset: str

    @property
    def max_model_len_bound(self) -> int | None:
        """Tokens that a request may have at most, where that is the preset's word; None where the user set the length
        himself, or nobody did.

        A preset knows no model. Its length keeps one request from taking a whole small pool, and is no wish for a
        context that the model may not have.
        """
        length = self.settings.engine.get("max_model_len")
        by_preset = self.origins.get(MAX_MODEL_LEN) == _preset_origin(self.preset, MAX_MODEL_LEN)
        return length if by_preset and isinstance(length, int) else None


@dataclass(frozen=True)
class _Raw:
    """One value as its layer gives it; ``text`` values still have to be converted."""

    key: str
    value: Any
    origin: str
    text: bool = False


@dataclass
class _Merge:
    """The highest value of each key so far, and every mistake met on the way."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, layer: Iterable[_Raw]) -> None:
        for raw in layer:
            try:
                key, value = _checked(raw)
            except ValueError as error:
                self.problems.append(f"{raw.origin}: {error}")
            else:
                self.values[key] = value
                self.origins[key] = raw.origin


def load_settings(
    *,
    cli: Mapping[str, object] = MappingProxyType({}),
    environ: Mapping[str, str],
    config_file: Path | None = None,
    preset: str | None = None,
    hardware: Hardware | None = None,
) -> LoadedSettings:
    """Settings of one gateway from all layers; raises ConfigError that lists every mistake, one a line.

    ``cli`` has dotted keys; texts in it are converted like those of the environment. Without ``config_file`` and
    ``preset`` the environment (PROXIMA__CONFIG, PROXIMA__PRESET) and the file (``preset:``) may name them.
    """
    machine = hardware or detect()
    environment = {raw.key: raw for raw in _environment(environ)}
    from_environment = environment.pop(CONFIG, None)
    if config_file is None and from_environment is not None:
        config_file = Path(from_environment.value)
    in_file = read_file(config_file) if config_file is not None else {}
    preset = _preset_name(preset, environment.pop(PRESET, None), in_file.pop(PRESET, None), config_file, machine)

    merge = _Merge()
    merge.add(_in_preset(preset, merge.problems))
    merge.add(_in_sections(in_file, f"file {config_file}", merge.problems, lines=True))
    merge.add(environment.values())
    merge.add(_Raw(key, value, CLI_ORIGIN, text=True) for key, value in cli.items())
    for raw in _from_hardware(merge.values, machine):
        if raw.key not in merge.values:
            merge.add([raw])
    return LoadedSettings(_build(merge), _all_origins(merge.origins), preset)


def _preset_name(
    given: str | None,
    in_environment: _Raw | None,
    in_file: FileValue | None,
    config_file: Path | None,
    machine: Hardware,
) -> str:
    if given is not None:
        return given
    if in_environment is not None:
        return str(in_environment.value)
    if in_file is None:
        return presets.default_name(machine)
    if not isinstance(in_file.value, str):
        raise ConfigError(f"file {config_file}:{in_file.line}: preset: {in_file.value!r} must be a preset's name")
    return in_file.value


def _environment(environ: Mapping[str, str]) -> Iterator[_Raw]:
    """PROXIMA__SECTION__FIELD; PROXIMA_PORT and the like are Kubernetes' own for a Service called proxima."""
    for name, value in sorted(environ.items()):
        # An empty variable is what `${X:-}` in a compose file leaves behind: not set.
        if name.startswith(ENV_PREFIX) and value:
            key = name.removeprefix(ENV_PREFIX).lower().replace(ENV_DELIMITER, ".")
            yield _Raw(key, value, f"environment {name}", text=True)


def _in_sections(values: Mapping[str, FileValue], source: str, problems: list[str], *, lines: bool) -> Iterator[_Raw]:
    for key, found in values.items():
        origin = f"{source}:{found.line}" if lines else source
        if key != ENGINE and key not in sections():
            yield _Raw(key, found.value, origin)
        elif found.value not in (None, {}):
            # A section may have nothing below it.
            problems.append(f"{origin}: {key} must be a mapping of keys to values, not {found.value!r}")


def _in_preset(preset: str, problems: list[str]) -> Iterator[_Raw]:
    for raw in _in_sections(presets.load(preset), f"preset {preset}", problems, lines=False):
        yield replace(raw, origin=_preset_origin(preset, raw.key))


def _preset_origin(preset: str, key: str) -> str:
    return f"preset {preset} (upper bound)" if key == MAX_MODEL_LEN else f"preset {preset}"


def _from_hardware(values: Mapping[str, Any], machine: Hardware) -> Iterator[_Raw]:
    """What follows from the machine and from what the other layers already decided."""
    if machine.has_gpu:
        return
    # Without AVX-512 bfloat16 is emulated and many times slower than float32.
    dtype, reason = "bfloat16", "CPU with AVX-512"
    if "avx512f" not in machine.cpu_flags:
        dtype, reason = "float32", "CPU without AVX-512"
    # Eager bfloat16 over several ranks gives wrong text in the CPU build.
    if any(values.get(f"engine.{size}", 1) > 1 for size in ("tensor_parallel_size", "pipeline_parallel_size")):
        dtype, reason = "float32", "several ranks on a CPU"
    yield _Raw("engine.dtype", dtype, f"hardware ({reason})")


def _checked(raw: _Raw) -> tuple[str, Any]:
    section, _, dest = raw.key.partition(".")
    if section == ENGINE and dest:
        flag = vllm_flags.find(dest)
        key, rule_of = f"{ENGINE}.{flag.dest}", flag.parse
    elif raw.key in keys():
        key, rule_of = raw.key, keys()[raw.key].parse
    else:
        raise ValueError(_unknown(raw))
    try:
        return key, rule_of(raw.value, text=raw.text)
    except ValueError as error:
        raise ValueError(f"{key}: {shown(key, raw.value)!r} {error}") from error


def _unknown(raw: _Raw) -> str:
    hint = nearest(raw.key, [*keys(), *(f"{ENGINE}.{dest}" for dest in vllm_flags.load_flags())])
    if hint is not None and raw.origin.startswith("environment"):
        hint = env_name(hint)
    return f"unknown key {raw.key}" + (f"; did you mean {hint}?" if hint else "")


def _build(merge: _Merge) -> ProximaSettings:
    nested: dict[str, Any] = {ENGINE: {}}
    for key, value in merge.values.items():
        section, _, name = key.rpartition(".")
        (nested.setdefault(section, {}) if section else nested)[name] = value
    if merge.problems:
        raise ConfigError("\n".join(merge.problems))
    try:
        return ProximaSettings.model_validate(nested)
    except ValidationError as error:
        rules = [problem["msg"].removeprefix("Value error, ") for problem in error.errors(include_url=False)]
        raise ConfigError("\n".join(rules)) from error


def _all_origins(origins: dict[str, str]) -> dict[str, str]:
    return dict.fromkeys(keys(), DEFAULT_ORIGIN) | origins
