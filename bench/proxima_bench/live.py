"""Progress while a measurement runs; on standard error, so that reports can be piped."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from proxima_bench.runner import Progress as Counts
from proxima_bench.runner import Runner

_INTERVAL_S = 0.5
_LINE_INTERVAL_S = 15.0


@contextmanager
def watching(runner: Runner, console: Console, title: str = "") -> Iterator[None]:
    """A bar drawn twice a second; a line now and then where the console is no terminal, as in the log of a CI job.

    Drawn from the event loop itself: a thread that draws would take time from the streams.
    """
    prefix = f"{title}: " if title else ""
    if console.is_terminal:
        with _bar(console) as bar, _background(_draw(runner, bar, prefix)):
            yield
    else:
        with _background(_lines(runner, console, prefix)):
            yield


def _bar(console: Console) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[state]}"),
    )
    return Progress(*columns, console=console, auto_refresh=False, transient=True)


@contextmanager
def _background(work: Coroutine[Any, Any, None]) -> Iterator[None]:
    task = asyncio.get_running_loop().create_task(work)
    try:
        yield
    finally:
        task.cancel()


async def _draw(runner: Runner, bar: Progress, prefix: str) -> None:
    task = bar.add_task("", total=None, state="")
    tokens = 0
    while True:
        now = runner.progress
        # A warm-up's tokens are not those of the measurement that follows it.
        rate = max(0, now.output_tokens - tokens) / _INTERVAL_S
        tokens = now.output_tokens
        bar.update(
            task,
            description=f"{prefix}{_phase(now)}",
            total=now.planned or None,
            completed=now.ended,
            state=f"{now.in_flight} in flight, {rate:.0f} tokens/s ended, {now.errors} errors",
            refresh=True,
        )
        await asyncio.sleep(_INTERVAL_S)


async def _lines(runner: Runner, console: Console, prefix: str) -> None:
    while True:
        await asyncio.sleep(_LINE_INTERVAL_S)
        now = runner.progress
        console.print(
            f"{prefix}{_phase(now)}, {now.ended} of {now.planned} ended, {now.in_flight} in flight, "
            f"{now.errors} errors",
            highlight=False,
        )


def _phase(progress: Counts) -> str:
    return "measuring" if progress.measuring else "warm-up"
