"""From the command line to settings: what is tried under which load, in which engines, and what is said of it."""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from proxima_bench import compare_run, comparison, comparison_report, live, load_flags, loads, machine, measurement
from proxima_bench import servers as processes
from proxima_bench.arms import Arm
from proxima_bench.arrivals import Closed
from proxima_bench.comparison import Case, Start, Turn
from proxima_bench.figures import error_rate
from proxima_bench.loads import Load
from proxima_bench.target import Target
from proxima_bench.tune import proof, search, verdict
from proxima_bench.tune.configuration import Configuration
from proxima_bench.tune.given import Given, given_settings, start_of
from proxima_bench.tune.record import Record
from proxima_bench.tune.search import Found
from proxima_bench.tune.trials import Status, Trial, Trials, failure, oom_kills
from proxima_config import hardware
from proxima_config.errors import ProximaError, UsageError

_TOLERATED_ERRORS = 0.05
"""Share of failed requests above which a trial counts as crashed."""
_FULL = 0.95
"""KV use from which on requests wait for blocks: those that are left are too few for the next request."""


async def tune(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Everything that was found, ready for JSON; `said` are the sentences for people.

    Raises UsageError for options that contradict each other, ProximaError where the baseline fails.
    """
    compare_run.cancel_on_sigterm()
    load, given = _load(options, has_gpu=hardware.detect().has_gpu), given_settings(options.model, options.engine_flags)
    engines = Engines(given, load, options.objective, compare_run.log_folder(options.logs), console)
    file = options.trials or options.out.with_suffix(".trials.json")
    record = Record.begin(file, _conditions(given, load, options.objective), engines.say)

    start = start_of(given, load.shape.concurrency if isinstance(load.shape, Closed) else None, quick=options.quick)
    found = await search.search(Trials(engines.trial, record, engines.say), start, given.settings)
    arms = _compared(found, quick=options.quick)
    # There is nothing to prove of a baseline alone.
    rounds = options.rounds if len(arms) > 1 else 0
    engines.say(f"best: {found.tuned}; {len(arms)} configurations are measured in turns, {rounds} rounds")
    # A share of all memory, or a larger pool, leaves no room for others.
    alone = start.memory == search.UTILISATION or start.memory in found.tuned.settings
    servers = partial(engines.servers, arms, one_at_a_time=alone)
    compared = await proof.prove(record, arms, load, rounds, servers, engines.again)

    reached = verdict.reach(compared, options.objective, found)
    about = [f"{load.preset or 'load'}: {load.requests} requests, {load.shape.describe()}"]
    verdict.write_settings(options.out, reached.chosen, load, given, [*reached.said, *about, _machine()])
    record.conclude(comparison_report.as_json(compared), **reached.as_json())
    said = [*reached.said, f"wrote {options.out}: proxima serve --config {options.out}"]
    return {"objective": options.objective, **reached.as_json(), "file": str(options.out), "said": said}


def _load(options: argparse.Namespace, *, has_gpu: bool) -> Load:
    base = load_flags.base_of(options)
    load = load_flags.load_from(options, base if has_gpu or not base.compare.cpu else loads.for_cpu(base))
    if load.relative_to_saturation:
        raise UsageError(f"{load.preset} is relative to what a server sustains: give --rate")
    # The pool that a preset asks for is one of the things that are tried here.
    return load.model_copy(update={"engine": {}})


def _compared(found: Found, *, quick: bool) -> list[Arm]:
    """Baseline, defaults unless they failed, and the best, each once; of a quick search the last two."""
    default = [] if found.default_failed else [found.default]
    arms = list({each.arm.name: each.arm for each in (found.baseline, *default, found.tuned)}.values())
    return arms[-2:] if quick else arms


def _conditions(given: Given, load: Load, objective: str) -> dict[str, Any]:
    return {
        "load": load.model_dump(mode="json"),
        "model": given.model,
        "preset": given.preset,
        "given": dict(given.settings),
        "objective": objective,
        "machine": machine.describe(),
    }


def _machine() -> str:
    return machine.sentence(machine.describe())


def _trial(report: dict[str, Any], objective: str) -> Trial:
    server, completed, prompts = report["server"] or {}, report["requests"]["completed"], report["tokens"]["prompt"]
    use = (server.get("kv_use") or {}).get("max") or 0.0
    about = f"attained {report['attainment']:.0%}, {report['output_tokens_per_s']:.1f} tokens/s"
    for name, figure in (("TTFT", "ttft_s"), ("longest stall", "stall_s")):
        if (median := report[figure]["p50"]) is not None:
            about += f", {name} p50 {median:.2f} s"
    return Trial(
        Status.MEASURED,
        "",
        float(report[objective] or 0.0),
        kv_full=use >= _FULL or bool(server.get("preemptions")),
        prompt_tokens=prompts / completed if prompts and completed else None,
        about=about,
    )


@dataclass(frozen=True)
class Engines:
    """Starts what is tried, and measures it."""

    given: Given
    load: Load
    objective: str
    logs: Path
    console: Console
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def say(self, text: str) -> None:
        compare_run.say(self.console, text)

    async def trial(self, configuration: Configuration) -> Trial:
        """In an engine of its own; how it fails is part of the answer."""
        killed = oom_kills()
        try:
            async with self._running(configuration.arm) as url:
                report = await self._measure(url, self.load, configuration.arm.name)
        except ProximaError as error:
            return failure(str(error), oom_killed=oom_kills() > killed)
        return _trial(report, self.objective)

    async def again(self, arm: Arm, url: str, number: int) -> dict[str, Any]:
        # The search had round 0: prompts of these rounds are other ones.
        load = self.load.model_copy(update={"seed": self.load.seed + number})
        report = await self._measure(url, load, f"round {number} {arm.name}")
        comparison.check(Turn(arm, Case("", load), number), report)
        self.say(f"round {number} {arm.name}: {report[self.objective]:.4g}")
        return report

    def servers(self, arms: Sequence[Arm], *, one_at_a_time: bool) -> AbstractAsyncContextManager[Start]:
        several = comparison.one_at_a_time if one_at_a_time else comparison.side_by_side
        return several(arms, self._running)

    def _running(self, arm: Arm) -> AbstractAsyncContextManager[str]:
        log = self.logs / f"{os.getpid()}-{next(self._numbers)}.log"
        extra = [f"--preset={self.given.preset}"] if self.given.preset else []
        return processes.running(arm, self.given.model, self.load, extra, log)

    async def _measure(self, url: str, load: Load, title: str) -> dict[str, Any]:
        async with measurement.session(Target(url), load) as session:
            measured = await session.measure(partial(live.watching, console=self.console, title=title))
        report = measured.report
        if error_rate(report) > _TOLERATED_ERRORS:
            raise ProximaError(f"of {report['requests']['offered']} requests there failed: {report['errors']}")
        return report
