"""The named presets that ship with Proxima: small YAML files with the reasons for their values."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from proxima_config.errors import ConfigError
from proxima_config.hardware import Hardware
from proxima_config.nearest import nearest
from proxima_config.yaml_file import FileValue, parse_text


@cache
def texts() -> dict[str, str]:
    """The YAML text of every preset by name."""
    folder = files("proxima_config") / "presets"
    found = {entry.name.removesuffix(".yaml"): entry for entry in folder.iterdir() if entry.name.endswith(".yaml")}
    return {name: found[name].read_text(encoding="utf-8") for name in sorted(found)}


def default_name(hardware: Hardware) -> str:
    return "gpu" if hardware.has_gpu else "cpu-embedded"


def load(name: str) -> dict[str, FileValue]:
    """The preset's values by dotted key; raises ConfigError that names the nearest preset."""
    if name not in texts():
        hint = nearest(name, texts())
        suggestion = f"did you mean {hint}?" if hint else f"there are {', '.join(texts())}"
        raise ConfigError(f"preset: {name!r} is no preset; {suggestion}")
    return parse_text(texts()[name], f"preset {name}")
