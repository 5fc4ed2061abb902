"""Checks of arguments that all wrappers share. Every message names the argument, its value and the rule."""

from __future__ import annotations

from collections.abc import Sequence

import torch

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
CACHE_DTYPES = (*FLOATS, *FP8, torch.int8)
INDICES = (torch.int32, torch.int64)


def check_dtype(name: str, tensor: torch.Tensor, allowed: Sequence[torch.dtype]) -> None:
    """TypeError unless the tensor has one of the allowed types."""
    if tensor.dtype not in allowed:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in allowed)
        raise TypeError(f"{name} is {str(tensor.dtype).removeprefix('torch.')}: must be one of {names}")


def check_shape(name: str, tensor: torch.Tensor, shape: Sequence[int | str]) -> None:
    """ValueError unless the shape fits; a word in `shape` stands for any length and names it in the message."""
    fits = tensor.dim() == len(shape) and all(
        isinstance(wanted, str) or wanted == length for wanted, length in zip(shape, tensor.shape, strict=True)
    )
    if not fits:
        wanted_shape = "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}: must be {wanted_shape}")


def check_device(name: str, tensor: torch.Tensor, device: torch.device) -> None:
    """ValueError unless the tensor is on `device`."""
    if tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device}: must be on {device}, as the first argument is")


def check_rows_dense(name: str, tensor: torch.Tensor) -> None:
    """ValueError unless neighbours in the last dimension are neighbours in memory."""
    if tensor.stride(-1) != 1:
        raise ValueError(f"{name} has stride {tensor.stride(-1)} in its last dimension: must be 1")


def check_dense(name: str, tensor: torch.Tensor) -> None:
    """ValueError unless the tensor is contiguous."""
    if not tensor.is_contiguous():
        raise ValueError(f"{name} is not contiguous: strides {tensor.stride()} of shape {tuple(tensor.shape)}")


def check_indices(name: str, tensor: torch.Tensor, shape: Sequence[int | str], device: torch.device) -> None:
    """Whole numbers of the given shape on the device, contiguous."""
    check_dtype(name, tensor, INDICES)
    check_shape(name, tensor, shape)
    check_device(name, tensor, device)
    check_dense(name, tensor)


def check_runnable(name: str, tensor: torch.Tensor, *, interpreted: bool) -> None:
    """ValueError for a tensor that a compiled kernel cannot reach."""
    if not interpreted and not tensor.is_cuda:
        raise ValueError(
            f"{name} is on {tensor.device}: the kernels run on a CUDA device, or anywhere under Triton's interpreter "
            "(TRITON_INTERPRET=1 before the first import of triton)"
        )
