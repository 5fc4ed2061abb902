"""What a check says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from proxima_server.doctor.subject import Subject


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """It will serve, but slower or less than it could."""
    BLOCKER = "blocker"
    """`proxima serve` with these settings fails, or gives wrong answers."""


@dataclass(frozen=True)
class Finding:
    """One line. ``remedy`` is what a person can do about it; empty when all is well."""

    level: Level
    message: str
    remedy: str = ""


Check = Callable[[Subject], Iterator[Finding]]


def ok(message: str) -> Finding:
    return Finding(Level.OK, message)


def warning(message: str, remedy: str) -> Finding:
    return Finding(Level.WARNING, message, remedy)


def blocker(message: str, remedy: str) -> Finding:
    return Finding(Level.BLOCKER, message, remedy)


def gib(count: float) -> str:
    """Bytes as a person reads them."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
