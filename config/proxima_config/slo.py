"""Stall, attainment and goodput, defined once for benchmark, lab, door and dashboard.

A request attains its objective when its first token came within ``ttft_s`` *and* no two consecutive tokens of it were
further apart than ``stall_s``. Refused, failed and cut-off requests never attain, however good their beginning was.
Shares are of *offered* requests, so that nobody gains by refusing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class SLO:
    """Targets in seconds, both inclusive. Raises ValueError unless both are positive."""

    ttft_s: float
    """Longest time from sending a request to its first token."""
    stall_s: float
    """Longest gap between two consecutive tokens of a stream."""

    def __post_init__(self) -> None:
        if not (self.ttft_s > 0 and self.stall_s > 0):
            raise ValueError(f"targets must be positive, not ttft_s={self.ttft_s}, stall_s={self.stall_s}")

    def attained(self, *, delivered: bool, ttft_s: float | None, stall_s: float) -> bool:
        """Whether one request met both targets.

        ``delivered`` is false for a refused, failed or cut-off request; ``ttft_s`` is None when no token came.
        """
        return delivered and ttft_s is not None and ttft_s <= self.ttft_s and stall_s <= self.stall_s


DEFAULT_SLO = SLO(ttft_s=2.0, stall_s=0.2)
"""What a reader of a chat takes for fluent: an answer that begins within two seconds and does not stutter."""


def gaps_s(token_times_s: Sequence[float]) -> list[float]:
    """Times between consecutive tokens; empty for fewer than two. ``token_times_s`` must not decrease."""
    return [after - before for before, after in pairwise(token_times_s)]


def longest_stall_s(token_times_s: Sequence[float]) -> float:
    """The longest gap between two consecutive tokens of one stream; 0 for fewer than two tokens."""
    return max(gaps_s(token_times_s), default=0.0)


def attainment(attained: int, offered: int) -> float | None:
    """Share of offered requests that attained, 0 to 1; None when none was offered."""
    if not 0 <= attained <= offered:
        raise ValueError(f"{attained} of {offered} requests cannot have attained")
    return attained / offered if offered else None


def goodput_rps(attained: int, duration_s: float) -> float | None:
    """Attaining requests per second; None for an empty measurement."""
    return attained / duration_s if duration_s > 0 else None
