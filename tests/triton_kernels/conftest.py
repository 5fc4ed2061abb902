"""The kernels are imported here, interpreted, before any test file does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from interpreted_triton import interpreting

with interpreting():
    import proxima_kernels.block_copy
    import proxima_kernels.decode
    import proxima_kernels.kv_write
    import proxima_kernels.prefill  # noqa: F401


@pytest.fixture(autouse=True)
def interpreted() -> Iterator[None]:
    with interpreting():
        yield
