"""What a trial changes: settings by their dotted names, as flags of `proxima serve` and as its YAML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from proxima_bench.arms import Arm
from proxima_config import vllm_flags
from proxima_config.tree import ENGINE, keys

SCHEDULER = "scheduler.kind"
SWAP = "swap.enabled"
_ENGINE = f"{ENGINE}."


@dataclass(frozen=True)
class Configuration:
    """Settings beside those that the machine's preset brings; vLLM's flags are below ``engine.``."""

    settings: Mapping[str, JsonValue]

    def changed(self, name: str, value: JsonValue) -> Configuration:
        return Configuration({**self.settings, name: value})

    @property
    def scheduler(self) -> str:
        return str(self.settings[SCHEDULER])

    @property
    def flags(self) -> tuple[str, ...]:
        """All but the scheduler, in a fixed order."""
        words = [_flag(name, value) for name, value in sorted(self.settings.items()) if name != SCHEDULER]
        return tuple(word for flag in words for word in flag)

    @property
    def arm(self) -> Arm:
        return Arm(str(self), self.scheduler, self.flags)

    def as_yaml(self) -> dict[str, Any]:
        """Sections and keys as `proxima serve --config` reads them."""
        tree: dict[str, Any] = {}
        for name, value in self.settings.items():
            *path, last = name.split(".", 1)
            at = tree.setdefault(path[0], {}) if path else tree
            at[last] = value
        return tree

    def __str__(self) -> str:
        return " ".join([self.scheduler, *self.flags])


def _flag(name: str, value: JsonValue) -> list[str]:
    if name.startswith(_ENGINE):
        return vllm_flags.to_argv({name.removeprefix(_ENGINE): value})
    key = keys()[name]
    if key.is_bool:
        return [key.flag if value else key.flag.replace("--", "--no-", 1)]
    return [f"{key.flag}={','.join(map(str, value)) if isinstance(value, list) else value}"]
