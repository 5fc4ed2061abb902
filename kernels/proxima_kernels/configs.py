"""How an attention kernel is cut and launched: measured per device where a file exists, otherwise a rule of thumb.

`configs/<device name with underscores>.json` holds what `scripts/gpu/tune_kernels.py` measured: how it was made, and
a list of entries {"phase", "dtype", "head_size", "group", "config"}. A phase without an entry for its dtype,
head_size and group follows the rule.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from proxima_kernels.launch import power_of_two

FOLDER = Path(__file__).parent / "configs"
Phase = Literal["decode", "prefill"]


@dataclass(frozen=True)
class AttentionConfig:
    """kv_tile: keys of a tile; lanes: query tokens times heads of a tile; num_warps, num_stages: Triton's;
    items_per_multiprocessor: programs that decode aims at, for each multiprocessor; min_keys: no split below it."""

    kv_tile: int = 64
    lanes: int = 16
    num_warps: int = 4
    num_stages: int = 3
    items_per_multiprocessor: int = 4
    min_keys: int = 256

    def __post_init__(self) -> None:
        for name in ("kv_tile", "lanes", "num_warps", "min_keys"):
            value = getattr(self, name)
            if value < 1 or value & (value - 1):
                raise ValueError(f"{name} is {value}: must be a power of two")
        if self.kv_tile < 16 or self.lanes < 16:
            raise ValueError(f"kv_tile is {self.kv_tile} and lanes {self.lanes}: must be at least 16 each")


def config_for(phase: Phase, dtype: torch.dtype, head_size: int, group: int, device: torch.device) -> AttentionConfig:
    """The measured configuration of this device, or the rule of thumb."""
    key = (phase, str(dtype).removeprefix("torch."), head_size, group)
    measured = _measured(torch.cuda.get_device_name(device)) if device.type == "cuda" else {}
    return measured.get(key) or rule_of_thumb(phase, dtype, head_size)


def rule_of_thumb(phase: Phase, dtype: torch.dtype, head_size: int) -> AttentionConfig:
    """Tiles that fit 96 KiB of shared memory with two stages, the least of the devices that we compile for, and the
    registers of their threads."""
    head_tile = power_of_two(head_size)
    if dtype == torch.float32:
        # Products without tensor cores keep their operands in registers.
        kv_tile = 32 if head_tile <= 64 else 16
        return AttentionConfig(kv_tile=kv_tile, lanes=kv_tile if phase == "prefill" else 16, num_warps=4, num_stages=2)
    kv_tile = max(16, min(64, 16384 // (head_tile * dtype.itemsize)))
    if phase == "decode":
        return AttentionConfig(kv_tile=kv_tile, lanes=16, num_warps=4, num_stages=2)
    return AttentionConfig(kv_tile=kv_tile, lanes=128 if head_tile <= 128 else 64, num_warps=8, num_stages=2)


def file_of(device_name: str) -> Path:
    """Where the measurements of a device are kept."""
    return FOLDER / f"{device_name.replace(' ', '_').replace('/', '_')}.json"


@functools.cache
def _measured(device_name: str) -> dict[tuple[str, str, int, int], AttentionConfig]:
    path = file_of(device_name)
    return read_configs(path) if path.exists() else {}


def read_configs(path: Path) -> dict[tuple[str, str, int, int], AttentionConfig]:
    """The entries of one file by (phase, dtype, head_size, group).

    Raises:
        ValueError: an entry is wrong; the message names the file and the entry.
    """
    found = {}
    for index, entry in enumerate(json.loads(path.read_text(encoding="utf-8"))["entries"]):
        try:
            key = (str(entry["phase"]), str(entry["dtype"]), int(entry["head_size"]), int(entry["group"]))
            found[key] = AttentionConfig(**entry["config"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path.name}: entries[{index}]: {error!r}") from error
    return found
