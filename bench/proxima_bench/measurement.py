"""One measurement from beginning to end: probe, warm up, measure, report."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import aiohttp

from proxima_bench import client_health, server_metrics
from proxima_bench.client import Client, connect
from proxima_bench.exchange import Clock, Exchange, Outcome
from proxima_bench.figures import figures
from proxima_bench.loads import Api, Lengths, Load, Synthetic, Trace
from proxima_bench.runner import Run, Runner
from proxima_bench.target import Target
from proxima_bench.timeline import timeline
from proxima_bench.tokens import Vocabulary
from proxima_bench.workload import Conversation, Workload, build
from proxima_config.errors import ProximaError
from proxima_config.forced_length import PROCESSOR

_LOOK_INTERVAL_S = 0.25
"""How often the lengths of a warm-up's answers are looked at while they come."""

Warn = Callable[[str], None]
"""Told at once what makes the figures doubtful, while there is time to stop; may raise."""
Watch = Callable[[Runner], AbstractContextManager[None]]
"""Shows the runner's progress while the context is open."""


@dataclass(frozen=True)
class Measurement:
    report: dict[str, Any]
    """The figures, ready for JSON."""
    rows: list[dict[str, Any]]
    """One for each request."""


@dataclass(frozen=True)
class Session:
    """A connection to one target, and a load drawn for it; may be measured any number of times."""

    client: Client
    target: Target
    load: Load
    workload: Workload
    clock: Clock
    metrics_urls: Sequence[str]
    warn: Warn

    async def measure(self, watch: Watch | None = None) -> Measurement:
        """Raises ProximaError when the warm-up got no answer at all."""
        runner = Runner(self.client, self.clock)
        with watch(runner) if watch else nullcontext():
            left_out = await self._warm_up(runner, self.workload.warmup)
            fetches = [partial(self.client.text, url) for url in self.metrics_urls]
            async with server_metrics.sampled(fetches) as server, client_health.watched() as health:
                run = await runner.measure(self.load, self.workload.measured)
        report = figures(run, self.load.slo)
        report["client"] = health.report(run.exchanges)
        report["server"] = server.report()
        report["load"] = _described(self.load, self.target, self.workload, run)
        report["warnings"] = [*left_out, *_warnings(report)]
        report["timeline"] = timeline(run, self.load.slo)
        return Measurement(report, [each.as_row(run.start_s, self.load.slo) for each in run.exchanges])

    async def probe(self) -> None:
        """Send one request of the warm-up, where there is one. Raises ProximaError as `measure` does."""
        await self._warm_up(Runner(self.client, self.clock), self.workload.warmup[:1])

    async def _warm_up(self, runner: Runner, conversations: Sequence[Conversation]) -> list[str]:
        """Warns once, at the first answer of a wrong length.

        Where lengths were to be forced, each answer can then run up to the cap: the rest is left out. Returns what the
        report has to say of that.
        """
        records: list[Exchange] = []
        sending = asyncio.create_task(runner.warm_up(self.load, conversations, records))
        warned = False
        try:
            while not sending.done():
                await asyncio.wait([sending], timeout=_LOOK_INTERVAL_S)
                if not warned and any(_misses(self.load, each) for each in records):
                    warned = True
                    missed = _missed("a warm-up answer", self.load.lengths)
                    self.warn(missed)
                    if self.load.lengths is Lengths.FORCED:
                        return [f"the rest of the warm-up was left out, because {missed}"]
            await sending
        finally:
            sending.cancel()
            await asyncio.wait([sending])
        if records and all(record.error for record in records):
            first = records[0]
            cause = f"{first.code} {first.detail}".strip()
            raise ProximaError(f"{self.target.root} answered none of the warm-up requests: {cause}")
        return []


@asynccontextmanager
async def session(
    target: Target,
    load: Load,
    *,
    metrics_urls: Sequence[str] = (),
    clock: Clock = time.perf_counter,
    connector: aiohttp.BaseConnector | None = None,
    warn: Warn = lambda _text: None,
) -> AsyncIterator[Session]:
    """Connects, finds out the model's name and the tokenizer's ways, and draws the load.

    ``metrics_urls`` are read besides the target's own /metrics.
    """
    async with connect(target, clock, connector) as unnamed:
        if target.model is None and load.api is not Api.GENERATE:
            target = replace(target, model=await unnamed.first_model())
        client = unnamed.for_target(target)
        workload = await build(load, client.count_tokens)
        pages = list(dict.fromkeys([f"{target.root}/metrics", *metrics_urls]))
        yield Session(client, target, load, workload, clock, pages, warn)


def _described(load: Load, target: Target, workload: Workload, run: Run) -> dict[str, Any]:
    """What was sent, in full, and how far the server kept to it."""
    described = load.model_dump(mode="json", exclude={"compare"})
    described |= {
        "arrivals": load.shape.describe(),
        "url": target.root,
        "model": target.model,
        "prompt_lengths": _prompt_lengths(load, workload.vocabulary),
        "missed_lengths": _missed_lengths(load, run.exchanges),
    }
    return described


def _prompt_lengths(load: Load, vocabulary: Vocabulary | None) -> str:
    if not isinstance(load.prompts, Synthetic | Trace):
        return "as given"
    return "exact, by the server's tokenizer" if vocabulary and vocabulary.exact else "approximate"


def _missed_lengths(load: Load, exchanges: Sequence[Exchange]) -> int | None:
    """Completed answers that did not have the length asked for; None where lengths are up to the model."""
    if load.lengths is Lengths.NATURAL:
        return None
    return sum(_misses(load, each) for each in exchanges if each.outcome is Outcome.COMPLETED)


def _misses(load: Load, exchange: Exchange) -> bool:
    """Whether the answer has not, or while it comes is already past, the length that the load asked for."""
    if load.lengths is Lengths.NATURAL:
        return False
    wanted = exchange.wanted_tokens
    if load.lengths is Lengths.FORCED:
        wanted = min(wanted, load.cap_tokens)
    if exchange.outcome is Outcome.COMPLETED:
        return exchange.usage_tokens is not None and exchange.usage_tokens != wanted
    # A piece may hold several tokens, so more pieces are more tokens.
    return len(exchange.token_times_s) > wanted


def _warnings(report: dict[str, Any]) -> list[str]:
    warnings = []
    if reason := client_health.bottleneck(report["client"]):
        warnings.append(
            f"{reason}: it may be the bottleneck, and the server better than these figures. Use another machine for "
            "the client, or fewer streams."
        )
    load, completed = report["load"], report["requests"][Outcome.COMPLETED]
    if missed := load["missed_lengths"]:
        warnings.append(_missed(f"{missed} of {completed} answers", Lengths(load["lengths"])))
    return warnings


def _missed(answers: str, lengths: Lengths) -> str:
    cure = (
        f"start the server with --logits-processors {PROCESSOR}, or use --lengths cap or natural"
        if lengths is Lengths.FORCED
        else "the server does not know ignore_eos, or its context is too short"
    )
    return f"{answers} did not have the length asked for: {cure}"
