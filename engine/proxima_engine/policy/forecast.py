"""How long answers still become: survival curves of answer lengths, learned from requests that finished.

A curve is built from hazards: of the answers that reached a length, the share that ended before the next one (the
life-table estimate; Kaplan and Meier 1958 for lengths in bins). That way answers that were cut at their cap, and those
that still run, count for what they show: that they were *at least* so long. Without those, a server that has just
started would believe that all answers are short, because the short ones finish first.

Lengths depend on what is asked, so there is a curve for each *group* of class, prompt length and declared cap, the
latter two by powers of two. A group leans on the curve of all requests until it has data of its own (shrinkage of each
hazard with a fixed weight), and that one leans on a prior, log-uniform up to the longest cap seen: every order of
magnitude is as likely as the next. Old answers are forgotten exponentially, so that the curves follow a drift.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from proxima_config.hints import RequestClass

Floats = NDArray[np.float64]

WINDOW = 400
"""Answers after which what was learned counts 1/e."""
_KEEP = 1 - 1 / WINDOW
PRIOR_WEIGHT = 4.0
"""How many answers the prior counts for."""
POOL_WEIGHT = 10.0
"""How many answers of its own a group needs to count as much as the pool."""
_LONGEST = 1 << 20
_LOWEST_SURVIVAL = 1e-200
_STEPS_PER_OCTAVE = 4


def _edges() -> Floats:
    fine = [0, 1, 2, 3, 4, 6, 8, 12]
    octaves = np.log2(_LONGEST / 16)
    coarse = 16 * 2 ** np.arange(0, octaves + 1e-9, 1 / _STEPS_PER_OCTAVE)
    return np.concatenate((np.array(fine, dtype=np.float64), np.round(coarse)))


EDGES = _edges()
"""Lengths in tokens at which curves have their points, shape (points,)."""
BIN_WIDTHS: Floats = np.diff(EDGES)
"""Tokens from each of EDGES to the next, shape (bins,)."""
_BINS = len(BIN_WIDTHS)
_BIN_OF_LENGTH = np.repeat(np.arange(_BINS, dtype=np.uint8), BIN_WIDTHS.astype(np.int64))
"""Bin of each length below the last edge. Searching takes ten times as long, and plans ask for thousands."""


def bins_of(tokens: Floats) -> NDArray[np.int64]:
    """Bin of each of some lengths, which are whole numbers; of all beyond the last edge the last one."""
    return _BIN_OF_LENGTH.take(tokens.astype(np.int64), mode="clip").astype(np.int64)


class Group(NamedTuple):
    """Requests whose answers are taken to be alike."""

    request_class: RequestClass
    prompt_band: int
    cap_band: int


def group_of(prompt_tokens: int, cap_tokens: int, request_class: RequestClass = RequestClass.DEFAULT) -> Group:
    """Bands are powers of two."""
    return Group(request_class, prompt_tokens.bit_length(), cap_tokens.bit_length())


Answer = tuple[int, bool]
"""Of one that ended its length in tokens, and whether it was cut at its cap."""


@dataclass(slots=True)
class _Counts:
    """Answers by bin, old ones decayed."""

    counts: Floats
    """Those that ended in the bin and those that went beyond it, shape (2, bins): one array, because both decay."""

    @property
    def ended(self) -> Floats:
        ended: Floats = self.counts[0]
        return ended

    @property
    def survived(self) -> Floats:
        survived: Floats = self.counts[1]
        return survived

    @classmethod
    def empty(cls) -> _Counts:
        return cls(np.zeros((2, _BINS)))

    def add(self, answers: Sequence[Answer]) -> None:
        """Several answers, in the order in which they ended."""
        tokens, cut = (np.array(each) for each in zip(*answers, strict=True))
        weights = _KEEP ** np.arange(len(answers) - 1.0, -1.0, -1.0)
        # An answer that is as long as an edge ended before it.
        at = bins_of(np.maximum(tokens - 1, 0))
        by_bin = np.bincount(at, weights, minlength=_BINS)
        self.counts *= _KEEP ** len(answers)
        self.counts[0] += np.bincount(at, weights * ~cut, minlength=_BINS)
        # Those that ended in a later bin have survived this one.
        self.counts[1, :-1] += by_bin[:0:-1].cumsum()[::-1]

    def hazards(self, lean_on: Floats, weight: float, running: Floats | float = 0.0) -> Floats:
        ended = self.ended
        reached: Floats = ended + self.survived + running
        return (ended + weight * lean_on) / (reached + weight)


# Compared by identity: each is made once and then kept.
@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Survival of one group: how likely an answer is to become longer than so many tokens."""

    survival: Floats
    """At each of EDGES, linear between them: answers are as likely to end at one length of a bin as at another."""

    def expected_tokens(self, cap_tokens: int) -> float:
        """Expected length of an answer that is cut at its cap."""
        return _expected_tokens(self, cap_tokens)


# Most clients declare one of a few caps.
@lru_cache(maxsize=1024)
def _expected_tokens(curve: Curve, cap_tokens: int) -> float:
    return float(np.interp(cap_tokens, EDGES, _expected_at_edges(curve)))


# Only those who arrive are asked, and most curves are for those who run.
@lru_cache(maxsize=256)
def _expected_at_edges(curve: Curve) -> Floats:
    """Expected length if answers were cut at each of EDGES, in tokens."""
    survival, expected = curve.survival, np.zeros(len(EDGES))
    np.add.accumulate((survival[:-1] + survival[1:]) / 2 * BIN_WIDTHS, out=expected[1:])
    return expected


class LengthForecast:
    """Learns from finished requests; every curve may be asked for at any time."""

    def __init__(self) -> None:
        self._all = _Counts.empty()
        self._groups: dict[Group, _Counts] = {}
        self._uncounted: list[tuple[Group, Answer]] = []
        """Answers that ended since a curve was made."""
        self._curves: dict[Group, Curve] = {}
        self._running: Floats = np.zeros(_BINS)
        self._longest_cap = 16
        self._pooled: Floats | None = None

    def learn(self, group: Group, output_tokens: int, cap_tokens: int) -> None:
        """One answer that ended: by itself, or cut at its cap. Curves that are made from now on know of it."""
        self._uncounted.append((group, (output_tokens, output_tokens >= cap_tokens)))
        self.see_cap(cap_tokens)

    def see_cap(self, cap_tokens: int) -> None:
        """A cap that somebody has declared: answers may become so long."""
        if min(cap_tokens, _LONGEST // 2) > self._longest_cap:
            self._longest_cap = min(cap_tokens, _LONGEST // 2)
            self._forget_curves()

    def look(self, running_tokens: NDArray[np.int64]) -> None:
        """Take note of how far those who run have come, and make the curves anew with all that was learned.

        ``running_tokens``: tokens generated so far, shape (running,).
        """
        passed = np.searchsorted(EDGES, running_tokens, side="right") - 1
        reached_bin = np.bincount(passed, minlength=_BINS + 1)[: _BINS + 1]
        # Those beyond a bin have survived it.
        self._running = (reached_bin.sum() - np.cumsum(reached_bin))[:_BINS].astype(np.float64)
        self._forget_curves()

    def curve(self, group: Group) -> Curve:
        """As of the last look; a group that was never asked for since is made now."""
        found = self._curves.get(group)
        if found is None:
            found = self._curves[group] = self._make(group)
        return found

    def peek(self, group: Group) -> Curve:
        """The same for those who only look: a curve that is made earlier for them knows less, so it is not kept."""
        found = self._curves.get(group)
        if found is None:
            pooled = self._pooled
            found = self._make(group)
            self._pooled = pooled
        return found

    def _count(self) -> None:
        """What was learned, all at once: as many answers end as start, and nobody asks for each."""
        if not self._uncounted:
            return
        by_group: dict[Group, list[Answer]] = {}
        for group, answer in self._uncounted:
            by_group.setdefault(group, []).append(answer)
        self._all.add([answer for _, answer in self._uncounted])
        for group, answers in by_group.items():
            self._groups.setdefault(group, _Counts.empty()).add(answers)
        self._uncounted.clear()

    def _make(self, group: Group) -> Curve:
        self._count()
        if self._pooled is None:
            self._pooled = self._all.hazards(_log_uniform(self._longest_cap), PRIOR_WEIGHT, self._running)
        hazards = self._pooled
        counts = self._groups.get(group)
        if counts is not None:
            hazards = counts.hazards(hazards, POOL_WEIGHT)
        # Never 0: whoever has got beyond what is known still has some way to go.
        survival = np.empty(len(EDGES))
        survival[0] = 1.0
        np.multiply.accumulate(1 - np.minimum(hazards, 0.999), out=survival[1:])
        np.maximum(survival, _LOWEST_SURVIVAL, out=survival)
        return Curve(survival)

    def _forget_curves(self) -> None:
        self._curves.clear()
        self._pooled = None


@lru_cache(maxsize=8)
def _log_uniform(longest: int) -> Floats:
    """Hazard of each bin if the logarithm of the length is uniform between 1 and ``longest``; beyond it all end."""
    begin, end = np.maximum(EDGES[:-1], 1), np.minimum(np.maximum(EDGES[1:], 1), longest)
    inside = begin < end
    hazards = np.ones(_BINS)
    hazards[begin < longest] = 0.0
    hazards[inside] = np.log(end[inside] / begin[inside]) / np.log(longest / begin[inside])
    return np.minimum(hazards, 0.999)
