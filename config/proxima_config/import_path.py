"""Keeps the repository root off the import path.

The root holds a folder `kernels/`. With the root on `sys.path` (as `python -m …` or `python -m pytest` put it there
when started from a checkout) Python takes that folder for the Hugging Face package of the same name, and
`import transformers` breaks. `PYTHONSAFEPATH=1` prevents it, but nobody can be relied on to set that.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def keep_repository_root_off_path() -> None:
    """Drop such entries from this process's path, and have child processes do without them too."""
    sys.path[:] = [entry for entry in sys.path if not _is_repository_root(Path(entry))]
    os.environ.setdefault("PYTHONSAFEPATH", "1")


def _is_repository_root(folder: Path) -> bool:
    return (folder / "kernels" / "proxima_kernels").is_dir()
