"""Whether the gain is real: measured again in turns, with other prompts than the search used."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from math import ceil, comb, log2
from statistics import median
from typing import Any

from proxima_bench.arms import Arm
from proxima_bench.comparison import FIGURES, Case, Comparison, Figure, Sample, Start
from proxima_bench.intervals import Ratio, difference_of_medians, ratio_of_medians
from proxima_bench.loads import Load
from proxima_bench.measurement import Measurement
from proxima_bench.number_format import rounded
from proxima_bench.tune.record import Record

DOUBT = 0.05
"""A gain that chance alone would show more often than this is none."""
FEWEST_ROUNDS = ceil(-log2(DOUBT))
"""All of them won: fewer can never be sure."""

Measure = Callable[[Arm, str, int], Awaitable[Mapping[str, Any]]]
"""Sends the load of a round to an arm's URL; gives the report."""


@dataclass(frozen=True)
class Gain:
    """Of one arm over another, in rounds that both had."""

    base: Sequence[float]
    values: Sequence[float]
    ratio: Ratio | None
    """None where the base is zero in some round."""
    difference: Ratio

    @property
    def rounds(self) -> int:
        return len(self.values)

    @property
    def won(self) -> int:
        return sum(mine > theirs for mine, theirs in zip(self.values, self.base, strict=True))

    @property
    def chance(self) -> float:
        """How often two equal arms would differ so: a sign test, of so many rounds won or more."""
        ways = sum(comb(self.rounds, won) for won in range(self.won, self.rounds + 1))
        return float(ways / 2**self.rounds)

    @property
    def sure(self) -> bool:
        if self.ratio is not None:
            above = self.ratio.value > 1 and self.ratio.differs
        else:
            above = self.difference.low is not None and self.difference.low > 0
        return above and self.chance <= DOUBT

    def as_json(self) -> dict[str, Any]:
        own = {"won": self.won, "rounds": self.rounds, "chance": self.chance, "sure": self.sure}
        return {"ratio": self.ratio and asdict(self.ratio), "difference": asdict(self.difference), **own}

    def __str__(self) -> str:
        said = f"{rounded(median(self.values))} against {rounded(median(self.base))}"
        if self.ratio is not None:
            interval = f" [{self.ratio.low:.2f}, {self.ratio.high:.2f}]" if self.ratio.low is not None else ""
            said += f", {self.ratio.value:.2f}{interval} times as much"
        elif self.difference.low is not None:
            value, low, high = map(rounded, (self.difference.value, self.difference.low, self.difference.high))
            said += f", {value} [{low}, {high}] more"
        return f"{said}; better in {self.won} of {self.rounds} rounds (by chance alone: {self.chance:.0%})"


async def prove(
    record: Record,
    arms: Sequence[Arm],
    load: Load,
    rounds: int,
    servers: Callable[[], AbstractAsyncContextManager[Start]],
    measure: Measure,
) -> Comparison:
    """Rounds that the record has whole are not measured again; one that was begun is. Raises ProximaError."""
    numbers = range(1, rounds + 1)
    if missing := [number for number in numbers if any(record.report(arm.name, number) is None for arm in arms)]:
        async with servers() as running:
            for number in missing:
                # Whoever comes second may find a warmer machine: they take turns in that too.
                ordered = list(arms) if number % 2 else list(reversed(arms))
                reports = {}
                for arm in ordered:
                    async with running(arm) as url:
                        reports[arm.name] = await measure(arm, url, number)
                record.add_round(number, reports)
    comparison = Comparison(arms, rounds, [Case("", load)])
    for number in numbers:
        for arm in arms:
            report = record.report(arm.name, number)
            assert report is not None  # noqa: S101 - measured above
            comparison.samples.append(Sample("", arm.name, number, Measurement(dict(report), [])))
    return comparison


def gain(compared: Comparison, figure: Figure, arm: Arm, over: Arm) -> Gain | None:
    """None where one of them does not have the figure in every round."""
    case = compared.cases[0]
    values, base = compared.values(case, arm, figure), compared.values(case, over, figure)
    if not values or not base:
        return None
    return Gain(base, values, ratio_of_medians(values, base), difference_of_medians(values, base))


def figure_of(key: str) -> Figure:
    return next(each for each in FIGURES if each.key == key)
