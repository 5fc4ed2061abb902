"""Traffic that is made up: the ordinary kinds, and kinds that are meant to hurt a scheduler.

As text, ``kind:key=value,...``: `poisson:rate=4,requests=500,input=32-512,output=lognormal(64, 1)`. Every key has a
default; lengths are written as in `proxima bench` (``proxima_config.token_counts``). Arrivals, lengths and choices are
drawn from streams of their own, so that another rate leaves the lengths as they are.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import accumulate, islice, repeat
from types import MappingProxyType
from typing import Any

from proxima_config import token_counts
from proxima_config.errors import UsageError
from proxima_config.nearest import nearest
from proxima_config.token_counts import Draw
from proxima_engine.lab.generator_values import READERS, key_of
from proxima_engine.lab.requests import DEFAULT_CAP_TOKENS, PREFIX_BLOCK_TOKENS, LabRequest, Workload

_PROMPTS = token_counts.parse("lognormal(512, 1, 4096)")
_ANSWERS = token_counts.parse("lognormal(128, 1, 1024)")
_SHORT_PROMPTS = token_counts.parse("32-512")
_SHORT_ANSWERS = token_counts.parse("16-128")
_LONG_ANSWERS = token_counts.parse("768-1024")
_GROWING_ANSWERS = token_counts.parse("lognormal(64, 0.5)")
_EQUAL = token_counts.parse("256")

Lengths = tuple[int, int]
"""Tokens of a prompt and of its answer."""


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """All at once. The kinds change when requests arrive, how long they are, or what they share."""

    requests: int = 500
    input_tokens: Draw = _PROMPTS
    output_tokens: Draw = _ANSWERS
    cap_tokens: int = DEFAULT_CAP_TOKENS
    """Declared `max_tokens`; an answer drawn longer ends there."""
    seed: int = 0

    def workload(self, name: str) -> Workload:
        """The same for the same values."""
        rows = zip(self._arrivals_s(), self._lengths(), self._caps(), self._prefixes(), strict=False)
        requests = (
            LabRequest(str(index), arrival_s, prompt, min(answer, cap), cap, prefix_hash_ids=prefix)
            for index, (arrival_s, (prompt, answer), cap, prefix) in enumerate(rows)
        )
        return Workload(name, tuple(islice(requests, self.requests)), self._concurrency())

    def _arrivals_s(self) -> Iterable[float]:
        return repeat(0.0)

    def _lengths(self) -> Iterable[Lengths]:
        rng = self._stream("lengths")
        while True:
            yield self.input_tokens(rng), self.output_tokens(rng)

    def _caps(self) -> Iterable[int]:
        return repeat(self.cap_tokens)

    def _prefixes(self) -> Iterable[tuple[int, ...]]:
        return repeat(())

    def _concurrency(self) -> int | None:
        return None

    def _stream(self, purpose: str) -> random.Random:
        return random.Random(f"{self.seed}/{purpose}")


@dataclass(frozen=True, kw_only=True)
class Poisson(Traffic):
    """Independent arrivals."""

    rate_rps: float = 4.0

    def _arrivals_s(self) -> Iterable[float]:
        rng = self._stream("arrivals")
        return accumulate(rng.expovariate(self.rate_rps) for _ in range(self.requests))


@dataclass(frozen=True, kw_only=True)
class Gamma(Poisson):
    """Arrivals in clumps."""

    burstiness: float = 0.25
    """Shape of the Gamma distribution of the gaps: 1 is Poisson, below it arrivals clump."""

    def _arrivals_s(self) -> Iterable[float]:
        rng = self._stream("arrivals")
        scale_s = 1 / (self.rate_rps * self.burstiness)
        return accumulate(rng.gammavariate(self.burstiness, scale_s) for _ in range(self.requests))


@dataclass(frozen=True, kw_only=True)
class Closed(Traffic):
    """A fixed number in flight; the next starts when one ends."""

    concurrency: int = 64

    def _concurrency(self) -> int | None:
        return self.concurrency


@dataclass(frozen=True, kw_only=True)
class Bimodal(Poisson):
    """Answers are short or, with a probability of ``long_share``, long; prompts do not tell which."""

    input_tokens: Draw = _SHORT_PROMPTS
    output_tokens: Draw = _SHORT_ANSWERS
    long_tokens: Draw = _LONG_ANSWERS
    long_share: float = 0.2

    def _lengths(self) -> Iterable[Lengths]:
        rng = self._stream("lengths")
        while True:
            long = rng.random() < self.long_share
            yield self.input_tokens(rng), (self.long_tokens if long else self.output_tokens)(rng)


@dataclass(frozen=True, kw_only=True)
class SharedPrefix(Poisson):
    """Each prompt begins with one of ``prefixes`` beginnings; ``input_tokens`` of its own come on top."""

    input_tokens: Draw = _SHORT_PROMPTS
    prefixes: int = 8
    prefix_tokens: int = 4 * PREFIX_BLOCK_TOKENS
    """A multiple of ``PREFIX_BLOCK_TOKENS``."""

    def _lengths(self) -> Iterable[Lengths]:
        rng = self._stream("lengths")
        while True:
            yield self.prefix_tokens + self.input_tokens(rng), self.output_tokens(rng)

    def _prefixes(self) -> Iterable[tuple[int, ...]]:
        blocks = self.prefix_tokens // PREFIX_BLOCK_TOKENS
        rng = self._stream("prefixes")
        while True:
            first = rng.randrange(self.prefixes) * blocks
            yield tuple(range(first, first + blocks))


@dataclass(frozen=True, kw_only=True)
class GiantHead(Poisson):
    """One prompt nearly as long as the pool among short ones, after a tenth of them.

    Strict order stops everyone behind it until the pool is almost empty; passing it without care starves it.
    """

    input_tokens: Draw = _SHORT_PROMPTS
    output_tokens: Draw = _SHORT_ANSWERS
    rate_rps: float = 8.0
    pool_tokens: int = 24_000
    """KV pool that the giant is made for; the default is 1,500 blocks of 16 tokens."""
    pool_share: float = 0.9

    @property
    def _giant_tokens(self) -> int:
        return max(1, int(self.pool_tokens * self.pool_share))

    def _lengths(self) -> Iterable[Lengths]:
        for index, (prompt, answer) in enumerate(super()._lengths()):
            yield (self._giant_tokens if index == self.requests // 10 else prompt), answer

    def _caps(self) -> Iterable[int]:
        # Half of what the giant leaves: with its longest answer it still fits an empty pool, whatever blocks round up.
        left = max(1, (self.pool_tokens - self._giant_tokens) // 2)
        for index in range(self.requests):
            yield min(self.cap_tokens, left) if index == self.requests // 10 else self.cap_tokens


@dataclass(frozen=True, kw_only=True)
class SameLengthWave(Traffic):
    """All at once and all alike, so that they grow in step and run out of blocks together.

    Lengths are drawn once, for all.
    """

    requests: int = 200
    input_tokens: Draw = _EQUAL
    output_tokens: Draw = _EQUAL

    def _lengths(self) -> Iterable[Lengths]:
        rng = self._stream("lengths")
        return repeat((self.input_tokens(rng), self.output_tokens(rng)))


@dataclass(frozen=True, kw_only=True)
class FarCap(Poisson):
    """Answers end far below the declared cap: who reserves for the cap runs almost nobody."""

    input_tokens: Draw = _SHORT_PROMPTS
    output_tokens: Draw = _SHORT_ANSWERS
    rate_rps: float = 8.0
    cap_tokens: int = 16 * DEFAULT_CAP_TOKENS


@dataclass(frozen=True, kw_only=True)
class Drift(Poisson):
    """Answers grow evenly, to ``growth`` times their length at the end: what was learnt at first becomes wrong."""

    requests: int = 1000
    input_tokens: Draw = _SHORT_PROMPTS
    output_tokens: Draw = _GROWING_ANSWERS
    growth: float = 6.0

    def _lengths(self) -> Iterable[Lengths]:
        last = max(1, self.requests - 1)
        for index, (prompt, answer) in enumerate(super()._lengths()):
            yield prompt, max(1, round(answer * (1 + (self.growth - 1) * index / last)))


GENERATORS: Mapping[str, type[Traffic]] = MappingProxyType(
    {
        "poisson": Poisson,
        "gamma": Gamma,
        "closed": Closed,
        "bimodal": Bimodal,
        "shared-prefix": SharedPrefix,
        "giant-head": GiantHead,
        "same-length-wave": SameLengthWave,
        "far-cap": FarCap,
        "drift": Drift,
    }
)


def parse(text: str, *, seed: int = 0, cap_tokens: int | None = None, pool_tokens: int | None = None) -> Workload:
    """The workload that ``text`` describes, called by it.

    The other values hold where the text is silent; None means the kind's own default, and a kind that has no use for a
    pool takes no notice of its size. Raises UsageError that names the kind, key or value that is wrong.
    """
    kind, _, rest = text.strip().partition(":")
    if kind not in GENERATORS:
        near = nearest(kind, GENERATORS)
        hint = f"did you mean {near}?" if near else f"there are {', '.join(GENERATORS)}"
        raise UsageError(f"no workload is called {kind!r}; {hint}")
    names = {key_of(field.name): field.name for field in fields(GENERATORS[kind])}
    outer = {"seed": seed, "cap_tokens": cap_tokens, "pool_tokens": pool_tokens}
    given: dict[str, Any] = {
        name: value for name, value in outer.items() if value is not None and name in names.values()
    }
    seen: set[str] = set()
    for key, value in _pairs(kind, rest):
        if key not in names:
            near = nearest(key, names)
            hint = f"did you mean {near}?" if near else f"there are {', '.join(names)}"
            raise UsageError(f"{kind} has no key {key!r}; {hint}")
        if key in seen:
            raise UsageError(f"{kind}: {key} stands there twice")
        seen.add(key)
        try:
            given[names[key]] = READERS[names[key]](value)
        except ValueError as error:
            raise UsageError(f"{kind}: {key}: {error}") from error
    return GENERATORS[kind](**given).workload(text.strip())


def _pairs(kind: str, text: str) -> Iterator[tuple[str, str]]:
    """Keys and values; commas within parentheses belong to the value."""
    for pair in filter(None, re.split(r",(?![^(]*\))", text)):
        key, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"{kind}: {pair!r} must be key=value")
        yield key.strip(), value.strip()
