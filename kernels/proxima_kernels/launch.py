"""Whether kernels are compiled or interpreted, and facts about the device."""

from __future__ import annotations

import functools
import os

import torch

#: Triton decides when a kernel is defined; changing the variable later has no effect.
INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") not in {"", "0"}


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """Streaming multiprocessors of a CUDA device; 4 under the interpreter, so that small tests split work too."""
    if device.type != "cuda":
        return 4
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@functools.cache
def capability(device: torch.device) -> tuple[int, int]:
    """Compute capability of a CUDA device; (9, 0) under the interpreter, which has every type."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)


_UNIT_SCALES: dict[torch.device, torch.Tensor] = {}


def unit_scale(device: torch.device) -> torch.Tensor:
    """A scale of 1, kept: a tensor made while a CUDA graph is captured would belong to the graph."""
    if device not in _UNIT_SCALES:
        _UNIT_SCALES[device] = torch.ones(1, dtype=torch.float32, device=device)
    return _UNIT_SCALES[device]


def power_of_two(number: int) -> int:
    """The least power of two that is not below `number`."""
    return 1 << (number - 1).bit_length()
