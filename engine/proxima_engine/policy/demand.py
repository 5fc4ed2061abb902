"""Arithmetic of block demand: what a set of requests will hold, step by step, and its peak.

Each running request generates one token a step until it ends, so at a horizon of k steps it holds the blocks of its
length plus k tokens with the probability that it still runs then, and none otherwise. Requests end independently of
each other, so means and variances add up. A newcomer fits if at every horizon

    min(mean + z * sqrt(variance), most) <= blocks of the pool

with `z` kept by `calibration`; `most` is what they hold if nobody ends before its cap. The past-future rule of Gong et
al. (ASPLOS 2025) asks the same question and answers it by drawing lengths; in closed form it costs less, and the same
state gives the same plan.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from proxima_engine.policy.forecast import BIN_WIDTHS, EDGES, Curve, Floats, bins_of

_NEAR = (1, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 448, 512, 640, 768, 1024)
_FAR = (1280, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 32768, 65536, 131072)
HORIZONS: Floats = np.array(_NEAR + _FAR, dtype=np.float64)
"""Steps from now at which demand is looked at, shape (horizons,)."""
_HORIZONS: list[float] = HORIZONS.tolist()


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold a number of tokens."""
    return -(-tokens // block_size)


def growth_blocks(tokens_before: int, tokens_after: int, block_size: int) -> int:
    """Blocks a request takes on top when its sequence grows from one length to another."""
    return max(0, blocks_for(tokens_after, block_size) - blocks_for(tokens_before, block_size))


class Holding(NamedTuple):
    """What the demand of one request depends on."""

    blocks: int
    """Blocks of its own: held now, or taken when it starts. What others hold anyway is not among them."""
    tokens: int
    """Of prompt and answer those that its blocks are for."""
    output_tokens: int
    """Generated so far."""
    cap_tokens: int
    curve: Curve


# Compared by identity: each is made once and then kept.
@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """Blocks by horizon."""

    parts: Floats
    """Mean, variance and most, shape (3, horizons): one array, because plans add up hundreds of them."""

    @property
    def mean(self) -> Floats:
        mean: Floats = self.parts[0]
        return mean

    @property
    def variance(self) -> Floats:
        variance: Floats = self.parts[1]
        return variance

    @property
    def most(self) -> Floats:
        """If nobody ends before its cap."""
        most: Floats = self.parts[2]
        return most

    def __add__(self, other: Demand) -> Demand:
        return Demand(self.parts + other.parts)

    def __sub__(self, other: Demand) -> Demand:
        parts = self.parts - other.parts
        # Rounding must not leave a variance below 0.
        np.maximum(0.0, parts[1], out=parts[1])
        return Demand(parts)

    def upper(self, z: float) -> Floats:
        """Blocks that are not exceeded, at a confidence of ``z`` standard deviations; shape (horizons,)."""
        return _upper(self.parts, z)

    def upper_at(self, horizon: int, z: float, others: Iterable[Demand]) -> float:
        """With that of ``others`` on top, at one horizon: the same as of the sum, at a fraction of its cost."""
        item = self.parts.item
        mean, variance, most = item(0, horizon), item(1, horizon), item(2, horizon)
        for other in others:
            item = other.parts.item
            mean, variance, most = mean + item(0, horizon), variance + item(1, horizon), most + item(2, horizon)
        return min(mean + math.sqrt(variance) * z, most)


def _upper(parts: Floats, z: float) -> Floats:
    """Of parts of shape (3, ..., horizons)."""
    mean, variance, most = parts
    # min(mean + z * sqrt(variance), most), in one array: each candidate of each plan is asked for it.
    upper: Floats = np.sqrt(variance)
    upper *= z
    upper += mean
    np.minimum(upper, most, out=upper)
    return upper


NO_DEMAND = Demand(np.zeros((3, len(HORIZONS))))


def sum_of(demands: Sequence[Demand]) -> Demand:
    return Demand(np.sum([demand.parts for demand in demands], axis=0)) if demands else NO_DEMAND


def demand_of_newcomer(blocks: int, tokens: int, cap_tokens: int, curve: Curve, block_size: float) -> Demand:
    """What `demand_of` says of one that has generated nothing yet, at a tenth of its cost: plans ask it for each
    candidate, and the curve is the same for many."""
    parts = np.zeros((3, len(HORIZONS)))
    surviving, at_cap = _surviving(curve, cap_tokens)
    reached = len(surviving)
    if not reached:
        return Demand(parts)
    mean, variance, most = parts[:, :reached]
    full, in_the_last = divmod(tokens, block_size)
    taken = blocks - math.ceil(tokens / block_size)
    np.add(_blocks_at_horizons(in_the_last, block_size)[:reached], taken + full, out=most)
    np.multiply(surviving, most, out=mean)
    most[-1] = last = taken + math.ceil((tokens + cap_tokens) / block_size)
    mean[-1] = max(float(mean[-1]), at_cap * last)
    np.subtract(most, mean, out=variance)
    variance *= mean
    return Demand(parts)


# There are as many as places in a block.
@lru_cache(maxsize=256)
def _blocks_at_horizons(tokens: float, block_size: float) -> Floats:
    """Blocks that hold so many tokens and one more for each step, at each horizon."""
    at_horizons: Floats = np.ceil((HORIZONS + tokens) / block_size)
    return at_horizons


# Most clients declare one of a few caps.
@lru_cache(maxsize=1024)
def _surviving(curve: Curve, cap_tokens: int) -> tuple[Floats, float]:
    """Survival at each horizon before the cap, and at the cap."""
    reached = bisect_left(_HORIZONS, cap_tokens)
    lengths = np.append(HORIZONS[:reached], cap_tokens)
    survival = np.interp(lengths, EDGES, curve.survival)
    return survival[:-1], float(survival[-1])


def held_blocks(blocks: Floats | int, tokens: Floats | int, steps: Floats | int, block_size: float) -> Floats:
    held: Floats = blocks + np.ceil((tokens + steps) / block_size) - np.ceil(tokens / block_size)
    return held


def demand_of(holdings: Sequence[Holding], block_size: float) -> list[Demand]:
    """Demand of each of several requests."""
    if not holdings:
        return []
    *fields, curves = zip(*holdings, strict=True)
    # Many requests share a few curves.
    places = {curve: place for place, curve in enumerate(dict.fromkeys(curves))}
    rows = np.array([places[curve] for curve in curves])
    parts = demand_parts(np.array(fields, dtype=np.float64), list(places), rows, block_size)
    return [Demand(each) for each in parts]


def demand_parts(held: Floats, curves: Sequence[Curve], rows: NDArray[np.int64], block_size: float) -> Floats:
    """Parts of the demand of each of several requests, shape (requests, 3, horizons). ``held``: the first four fields
    of their `Holding`, shape (4, requests); ``rows``: which of the ``curves`` is that of each.

    Nothing is looked at between two horizons, and requests that all go to the same cap hold most right before they end
    there. So each one's last horizon counts what it holds at its cap, if that is more.
    """
    parts = np.zeros((len(rows), 3, len(HORIZONS)))
    if not len(rows):
        return parts
    blocks, tokens, generated, cap = held[:, :, None]
    remaining = cap - generated
    # Nobody gets further: all beyond is 0.
    horizons = HORIZONS[: bisect_left(_HORIZONS, float(remaining.max()))]
    if len(horizons):
        # Looked up at once: now, at each horizon and at the cap.
        lengths = np.concatenate((generated, generated + horizons, cap), axis=1)
        surviving = survival_at(np.stack([curve.survival for curve in curves]), lengths, rows)
        now = surviving[:, :1]
        may_run = remaining > horizons
        mean, variance, most = parts[:, :, : len(horizons)].swapaxes(0, 1)
        np.multiply(may_run, held_blocks(blocks, tokens, horizons, block_size), out=most)
        np.divide(surviving[:, 1:-1], now, out=mean)
        np.minimum(mean, 1.0, out=mean)
        mean *= most
        last = may_run.sum(axis=1) - 1
        going = np.flatnonzero(last >= 0)
        last = last[going]
        most[going, last] = held_blocks(blocks, tokens, remaining, block_size)[going, 0]
        to_the_end = np.minimum(surviving[:, -1:] / now, 1.0)[going, 0]
        mean[going, last] = np.maximum(mean[going, last], to_the_end * most[going, last])
        np.subtract(most, mean, out=variance)
        variance *= mean
    return parts


def survival_at(values: Floats, tokens: Floats, rows: NDArray[np.int64] | None = None) -> Floats:
    """Values, given at EDGES, at tokens; linear between edges. Both of shape (rows, ...); each row of tokens is for the
    same row of values, or for that which ``rows`` names."""
    below = bins_of(tokens)
    weight = np.minimum((tokens - EDGES[below]) / BIN_WIDTHS[below], 1.0)
    # Places in the flat array: NumPy finds those at a quarter of the cost of pairs.
    if rows is None:
        rows = np.arange(len(values))
    place = rows[:, None] * values.shape[1] + below
    flat = values.ravel()
    found: Floats = flat.take(place) * (1 - weight) + flat.take(place + 1) * weight
    return found


class PoolForecast:
    """Demand of all who run, kept up to date as they come and go, and made anew now and then.

    Between two refreshes each part is as it was made, while the request grows by a token a step. In a large batch that
    comes to more than the forecast leaves free, so what all have grown is put on top.
    """

    def __init__(self) -> None:
        self._total: Floats = np.zeros_like(NO_DEMAND.parts)
        """Of all parts as they were made. Changed in place: many come and go between two that ask for it."""
        self._parts: dict[str, tuple[Floats, int]] = {}
        """By request the parts of its demand, and the step in which they were made."""
        self._step = 0
        self._steps_made = 0
        """Sum over all parts."""

    @property
    def total(self) -> Demand:
        """Of all who run, as their parts were made."""
        parts = self._total.copy()
        # Rounding must not leave a variance below 0.
        np.maximum(parts[1], 0.0, out=parts[1])
        return Demand(parts)

    def refresh(self, request_ids: Sequence[str], parts: Floats) -> None:
        """Those who run now, and nobody else, with the ``parts`` of their demand; shape (requests, 3, horizons)."""
        made = zip(parts, repeat(self._step), strict=False)
        self._parts = dict(zip(request_ids, made, strict=True))
        self._steps_made = self._step * len(parts)
        self._total = parts.sum(axis=0)

    def clear(self) -> None:
        """Nobody runs."""
        self._parts = {}
        self._steps_made = 0
        self._total = np.zeros_like(NO_DEMAND.parts)

    def part(self, request_ids: Iterable[str]) -> Demand:
        """Demand of some of those who run, as it was made."""
        return sum_of([Demand(self._parts[request_id][0]) for request_id in request_ids if request_id in self._parts])

    def add(self, request_id: str, demand: Demand) -> None:
        self.remove(request_id)
        self._parts[request_id] = demand.parts, self._step
        self._steps_made += self._step
        self._total += demand.parts

    def remove(self, request_id: str) -> None:
        """Nothing happens where it is not there."""
        part = self._parts.pop(request_id, None)
        if part is not None:
            self._total -= part[0]
            self._steps_made -= part[1]

    def step(self) -> None:
        """All who run have got one token more."""
        self._step += 1

    def now(self, block_size: float) -> Demand:
        """Demand of all who run. What they have grown is still there at a later horizon as far as they are."""
        total = self.total
        grown = (self._step * len(self._parts) - self._steps_made) // block_size
        mean, _, most = total.parts
        now = float(mean[0])
        if grown and now:
            mean += np.minimum(mean * (grown / now), grown)
            most += grown * (most > 0)
        return total


_BEFORE_START = np.tri(len(HORIZONS), k=-1, dtype=bool)
"""For each start the horizons before it, shape (horizons, horizons)."""


def _shifts() -> tuple[NDArray[np.int64], Floats, Floats]:
    """For each start and horizon: between which two horizons from the start on that lies, as the place of the first,
    and the shares of both; 0 before the start. All of shape (horizons, horizons)."""
    begun = np.maximum(HORIZONS - HORIZONS[:, None], HORIZONS[0])
    place = np.clip(np.searchsorted(HORIZONS, begun, side="right") - 1, 0, len(HORIZONS) - 2)
    second = (begun - HORIZONS[place]) / (HORIZONS[place + 1] - HORIZONS[place])
    return place, np.where(_BEFORE_START, 0.0, 1.0 - second), np.where(_BEFORE_START, 0.0, second)


_PLACE, _FIRST, _SECOND = _shifts()
_SECTION = 8
"""Starts that are looked at together. Mostly one of the first will do."""


# The head of the queue is the same for many steps.
@lru_cache(maxsize=256)
def _by_start(newcomer: Demand, first: int) -> Floats:
    """What a newcomer holds if it starts at each horizon of the section from ``first`` on: (3, starts, horizons)."""
    parts, section = newcomer.parts, slice(first, first + _SECTION)
    place, shares = _PLACE[section], (_FIRST[section], _SECOND[section])
    starts: Floats = parts.take(place, axis=1) * shares[0] + parts.take(place + 1, axis=1) * shares[1]
    return starts


def reserve(running: Demand, newcomer: Demand, z: float, blocks: float) -> tuple[int, Demand]:
    """The earliest horizon from which on a newcomer fits beside those who run, to its end, and its demand from there.

    This is the shadow time of EASY backfilling (Lifka 1995), by forecast. Returns the index of the horizon; the last
    one where it never fits.
    """
    for first in range(0, len(HORIZONS), _SECTION):
        starts = _by_start(newcomer, first)
        upper = _upper(running.parts[:, None] + starts, z)
        # What those who run hold before that time is not the newcomer's business.
        fits = np.logical_and.reduce((upper <= blocks) | _BEFORE_START[first : first + _SECTION], axis=1)
        index = int(fits.argmax())
        if fits[index]:
            return first + index, Demand(starts[:, index])
    return len(HORIZONS) - 1, Demand(starts[:, -1])
