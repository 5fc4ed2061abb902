"""Runs in each Python process of a gateway that `scripts/soak.py` loads, and tells how much memory is really in use.

The size of a process cannot tell: what has been freed stays with glibc's heap, in gaps between what has not. So this
counts what is allocated: bytes by malloc, and Python's own blocks, which come in arenas beside malloc. A number in the
file `ask` of the folder PROXIMA_SOAK_PROBE asks for figures; they come as PID.json with that number in it.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import threading
import time
from pathlib import Path

_LOOK_S = 0.2


class _Mallinfo2(ctypes.Structure):
    """Of glibc 2.33 and later."""

    _fields_ = (
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    )


def _answer(folder: Path) -> None:
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = _Mallinfo2
    answered = ""
    while True:
        time.sleep(_LOOK_S)
        try:
            asked = (folder / "ask").read_text()
        except OSError:
            continue
        if asked == answered:
            continue
        gc.collect()
        libc.malloc_trim(0)
        info = libc.mallinfo2()
        figures = {"asked": asked, "malloc_bytes": info.uordblks + info.hblkhd, "blocks": sys.getallocatedblocks()}
        new = folder / f"{os.getpid()}.new"
        new.write_text(json.dumps(figures))
        new.replace(new.with_suffix(".json"))
        answered = asked


def _start() -> None:
    threading.Thread(target=_answer, args=(Path(os.environ["PROXIMA_SOAK_PROBE"]),), daemon=True).start()


if "PROXIMA_SOAK_PROBE" in os.environ:
    os.register_at_fork(after_in_child=_start)
    _start()
