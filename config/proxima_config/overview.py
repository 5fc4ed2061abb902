"""The effective settings as a person or a script reads them, secrets masked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from proxima_config import vllm_flags
from proxima_config.layering import DEFAULT_ORIGIN, LoadedSettings
from proxima_config.masking import shown
from proxima_config.tree import ENGINE, keys

VLLM_DEFAULT_ORIGIN = "vLLM's default"


@dataclass(frozen=True)
class Row:
    key: str
    value: Any
    origin: str


def rows(loaded: LoadedSettings, *, every_flag: bool = False) -> list[Row]:
    """Every key of the tree, then the vLLM flags that are set, or with ``every_flag`` all of them."""
    tree = loaded.settings.model_dump(mode="json")
    found = [Row(key, shown(key, _at(tree, key)), loaded.origins.get(key, DEFAULT_ORIGIN)) for key in keys()]
    for dest, flag in vllm_flags.load_flags().items():
        key = f"{ENGINE}.{dest}"
        if dest in loaded.settings.engine:
            value = loaded.settings.engine[dest]
            found.append(Row(key, shown(key, value), loaded.origins.get(key, DEFAULT_ORIGIN)))
        elif every_flag:
            found.append(Row(key, flag.default, VLLM_DEFAULT_ORIGIN))
    return found


def as_table(loaded: LoadedSettings, *, every_flag: bool = False) -> str:
    """One line for each key: name, value, origin."""
    cells = [(row.key, _text(row.value), row.origin) for row in rows(loaded, every_flag=every_flag)]
    key_width, value_width = (max(len(cell[column]) for cell in cells) for column in (0, 1))
    lines = [f"{key:<{key_width}}  {value:<{value_width}}  {origin}" for key, value, origin in cells]
    return "\n".join([f"preset: {loaded.preset}", *lines]) + "\n"


def as_json(loaded: LoadedSettings, *, every_flag: bool = False) -> dict[str, Any]:
    """``{"preset": name, "settings": {key: {"value": ..., "origin": ...}}}`` with dotted keys."""
    listed = {row.key: {"value": row.value, "origin": row.origin} for row in rows(loaded, every_flag=every_flag)}
    return {"preset": loaded.preset, "settings": listed}


def _at(tree: dict[str, Any], key: str) -> Any:
    value: Any = tree
    for part in key.split("."):
        value = value[part]
    return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value)
