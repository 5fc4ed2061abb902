"""Triton's interpreter for the tests of the kernels, and for them only.

Triton reads TRITON_INTERPRET when it is imported first (its own library of jit functions), when a kernel is defined,
and while a kernel runs. vLLM in the same process must not notice, and processes that tests start must not inherit it.
On a machine with a GPU, TRITON_INTERPRET=0 tests the compiled kernels.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

VARIABLE = "TRITON_INTERPRET"
CHOSEN = os.environ.get(VARIABLE, "1")


@contextmanager
def interpreting() -> Iterator[None]:
    """While this is open, Triton interprets what is imported, defined and run, unless the user said otherwise."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = CHOSEN
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
