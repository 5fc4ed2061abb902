"""Progress while a measurement runs; on standard error, so that reports can be piped."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from proxima_bench.runner import Runner

_INTERVAL_S = 0.5


@contextmanager
def watching(runner: Runner, console: Console) -> Iterator[None]:
    """Drawn twice a second from the event loop itself: a thread that draws would take time from the streams."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[state]}"),
    )
    with Progress(
        *columns, console=console, auto_refresh=False, transient=True, disable=not console.is_terminal
    ) as bar:
        drawing = asyncio.get_running_loop().create_task(_draw(runner, bar))
        try:
            yield
        finally:
            drawing.cancel()


async def _draw(runner: Runner, bar: Progress) -> None:
    task = bar.add_task("warm-up", total=None, state="")
    tokens = 0
    while True:
        now = runner.progress
        rate = max(0, now.output_tokens - tokens) / _INTERVAL_S
        tokens = now.output_tokens
        bar.update(
            task,
            description="measuring" if now.planned else "warm-up",
            total=now.planned or None,
            completed=now.ended,
            state=f"{now.in_flight} in flight, {rate:.0f} tokens/s ended, {now.errors} errors",
            refresh=True,
        )
        await asyncio.sleep(_INTERVAL_S)
