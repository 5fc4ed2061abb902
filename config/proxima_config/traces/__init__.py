"""Recorded traffic that ships with Proxima; SOURCES.md beside it says where it is from, and under which licence."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from proxima_config.errors import UsageError

AZURE_CUT = "azure2023_conv_1500.csv"
"""The first 1,500 requests of Azure's chat trace of 2023."""


def shipped(name: str) -> Traversable | None:
    """The shipped trace with this bare file name, if there is one."""
    if Path(name).name != name or not name.endswith(".csv"):
        return None
    trace = files(__name__) / name
    return trace if trace.is_file() else None


def text_of(path: Path) -> str:
    """What the file holds; a bare name that is no file in the current folder means a shipped trace.

    Raises UsageError for a file that cannot be read.
    """
    try:
        trace = None if path.exists() else shipped(str(path))
        return (trace or path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or 'not UTF-8'})") from error
