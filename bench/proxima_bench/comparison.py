"""Arms measured in turns, A B A B, and the ratios between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

from proxima_bench import measurement, workload
from proxima_bench.arms import Arm
from proxima_bench.arrivals import Closed
from proxima_bench.exchange import Outcome
from proxima_bench.intervals import Ratio, ratio_of_medians
from proxima_bench.loads import Lengths, Load
from proxima_bench.measurement import Measurement, Watch
from proxima_bench.target import Target
from proxima_config.errors import ProximaError

Start = Callable[[Arm], AbstractAsyncContextManager[str]]
"""Runs an arm's server while the context is open; gives its base URL."""

SATURATING_CONCURRENCY = 64
"""Closed loop that finds out what a server sustains: more in flight than fit into the pools of the presets."""


@dataclass(frozen=True)
class Case:
    """One load of a comparison."""

    name: str
    """Empty where there is only one."""
    load: Load


@dataclass(frozen=True)
class Figure:
    """A value taken from each report."""

    key: str
    label: str
    path: tuple[str, ...]
    higher_is_better: bool = False
    is_rate: bool = True
    """Whether a ratio of it means something; counts that are often 0 are shown as they are."""

    def of(self, report: Mapping[str, Any]) -> float | None:
        value: Any = report
        for part in self.path:
            value = value.get(part) if isinstance(value, Mapping) else None
        return value if isinstance(value, int | float) else None


def _latency(key: str, label: str, *statistics: str) -> list[Figure]:
    return [Figure(f"{key}.{each}", f"{label} {each} (s)", (key, each)) for each in statistics]


FIGURES: Sequence[Figure] = (
    Figure("output_tokens_per_s", "output tokens/s", ("output_tokens_per_s",), higher_is_better=True),
    Figure("qps", "requests/s", ("qps",), higher_is_better=True),
    Figure("goodput_rps", "goodput (requests/s)", ("goodput_rps",), higher_is_better=True),
    Figure("attainment", "attainment", ("attainment",), higher_is_better=True),
    *_latency("ttft_s", "TTFT", "mean", "p50", "p99"),
    *_latency("itl_s", "ITL", "p50", "p99"),
    *_latency("tpot_s", "TPOT", "mean", "p50", "p99"),
    *_latency("e2e_s", "E2E", "mean", "p50", "p99"),
    *_latency("stall_s", "longest stall", "p50", "p95", "p99", "max"),
    Figure("prefill_tokens", "prefill tokens computed", ("server", "prefill_tokens")),
    Figure("preemptions", "preemptions", ("server", "preemptions"), is_rate=False),
    Figure("recomputed_tokens", "tokens computed again", ("server", "recomputed_tokens"), is_rate=False),
)


@dataclass(frozen=True)
class Sample:
    """One arm, one round, one case."""

    case: str
    arm: str
    round: int
    measurement: Measurement


@dataclass
class Comparison:
    """``samples`` grow while it runs; everything else follows from them."""

    arms: Sequence[Arm]
    rounds: int
    cases: Sequence[Case] = ()
    samples: list[Sample] = field(default_factory=list)
    failure: str = ""
    """Why it ended early; what is here are the rounds that were whole."""
    saturation_rps: float | None = None
    """What the native arm sustained, where the cases are multiples of it."""

    @property
    def baseline(self) -> Arm:
        return self.arms[0]

    def values(self, case: Case, arm: Arm, figure: Figure) -> list[float] | None:
        """One a round; None unless every round has the figure."""
        found = [figure.of(each.report) for each in self._measurements(case, arm)]
        known = [value for value in found if value is not None]
        return known if known and len(known) == len(found) else None

    def median(self, case: Case, arm: Arm, figure: Figure) -> float | None:
        values = self.values(case, arm, figure)
        return median(values) if values else None

    def ratio(self, case: Case, arm: Arm, figure: Figure) -> Ratio | None:
        """The arm's figure over the baseline's."""
        values, base = self.values(case, arm, figure), self.values(case, self.baseline, figure)
        return ratio_of_medians(values, base) if figure.is_rate and values and base else None

    def _measurements(self, case: Case, arm: Arm) -> list[Measurement]:
        return [each.measurement for each in self.samples if (each.case, each.arm) == (case.name, arm.name)]


@dataclass(frozen=True)
class Plan:
    """What to compare."""

    arms: Sequence[Arm]
    load: Load
    rounds: int
    cut: bool
    """Whether the load is the smaller one that its preset has for machines without a GPU."""
    restart: bool
    """Start each arm anew for each of its turns, alone on the machine; else all run side by side, the others idle."""
    api_key: str | None = None


@dataclass(frozen=True)
class Turn:
    """What is about to be measured; ``round`` is 0 for the saturation."""

    arm: Arm
    case: Case
    round: int


WatchTurn = Callable[[Turn], Watch]
Ended = Callable[[Turn, Measurement], None]


async def compare(plan: Plan, start: Start, watch: WatchTurn, ended: Ended) -> Comparison:
    """Measure all arms in turns.

    Every round has its own seed, so that no arm meets a prompt again that its prefix cache still holds; within a round
    all arms get the same requests. Raises ProximaError when an arm does not start, does not answer, or ignores the
    lengths asked for: a comparison without it would be none. Rounds that were whole by then are kept.
    """
    comparison = Comparison(plan.arms, plan.rounds)
    servers = one_at_a_time if plan.restart else side_by_side
    async with servers(plan.arms, start) as running:
        runner = _Runner(plan, comparison, running, watch, ended)
        await runner.probe()
        comparison.cases = await runner.cases()
        for number in range(1, plan.rounds + 1):
            try:
                comparison.samples += await runner.round(number)
            except ProximaError as error:
                if number == 1:
                    raise
                comparison.rounds, comparison.failure = number - 1, str(error)
                break
    return comparison


@asynccontextmanager
async def side_by_side(arms: Sequence[Arm], start: Start) -> AsyncIterator[Start]:
    """All started at once: most of a start is Python's imports, which leave cores to others."""
    async with AsyncExitStack() as stack:
        starting = [asyncio.ensure_future(stack.enter_async_context(start(arm))) for arm in arms]
        try:
            started = await asyncio.gather(*starting)
        except BaseException:
            # The first that fails ends the others, which stop what they have begun.
            for each in starting:
                each.cancel()
            await asyncio.gather(*starting, return_exceptions=True)
            raise
        urls = dict(zip((arm.name for arm in arms), started, strict=True))
        yield lambda arm: nullcontext(urls[arm.name])


@asynccontextmanager
async def one_at_a_time(_arms: Sequence[Arm], start: Start) -> AsyncIterator[Start]:
    yield start


@dataclass(frozen=True)
class _Runner:
    plan: Plan
    comparison: Comparison
    running: Start
    watch: WatchTurn
    ended: Ended

    async def round(self, number: int) -> list[Sample]:
        samples = []
        for arm in self.plan.arms:
            async with self.running(arm) as url:
                for case in self.comparison.cases:
                    measured = await self.measure(Turn(arm, case, number), url)
                    samples.append(Sample(case.name, arm.name, number, measured))
        return samples

    async def probe(self) -> None:
        """One request to each server that runs already: whatever is wrong with it is better known before an hour."""
        for arm in self.plan.arms:
            if arm.url:
                turn = Turn(arm, Case("probe", self.plan.load), 0)
                async with measurement.session(self._target(arm.url), self.plan.load, warn=partial(refuse, turn)) as s:
                    await s.probe()

    def _target(self, url: str) -> Target:
        return Target(url, api_key=self.plan.api_key)

    async def cases(self) -> list[Case]:
        """The load itself; or, for a load defined relative to saturation, one case for each multiple of it."""
        load = self.plan.load
        if not load.relative_to_saturation:
            return [Case("", load)]
        native = next((arm for arm in self.plan.arms if arm.kind == "native"), self.plan.arms[0])
        closed = load.model_copy(update={"shape": Closed(concurrency=SATURATING_CONCURRENCY)})
        async with self.running(native) as url:
            sustained = await self.measure(Turn(native, Case("saturation", closed), 0), url)
        self.comparison.saturation_rps = rps = sustained.report["qps"]
        return [
            Case(f"{multiple:g}x", workload.at_rate(load, multiple * rps)) for multiple in load.saturation_multiples
        ]

    async def measure(self, turn: Turn, url: str) -> Measurement:
        load = turn.case.load.model_copy(update={"seed": turn.case.load.seed + turn.round})
        async with measurement.session(self._target(url), load, warn=partial(refuse, turn)) as session:
            measured = await session.measure(self.watch(turn))
        check(turn, measured.report)
        self.ended(turn, measured)
        return measured


def refuse(turn: Turn, reason: str) -> None:
    """Where lengths are the model's own affair, a server without them can still be compared."""
    if turn.case.load.lengths is Lengths.FORCED:
        raise ProximaError(f"{turn.arm.name}: {reason}")


def check(turn: Turn, report: Mapping[str, Any]) -> None:
    if not report["requests"][Outcome.COMPLETED]:
        errors = ", ".join(f"{code} {count}" for code, count in report["errors"].items())
        raise ProximaError(f"{turn.arm.name} completed no request: {errors}")
    if report["load"]["missed_lengths"]:
        refuse(turn, "; ".join(report["warnings"]))
