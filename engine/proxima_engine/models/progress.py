"""Progress of a preparation on stderr: a bar on a terminal, one line per stage elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


class Reporter(Protocol):
    """What a preparation says while it works."""

    def stage(self, text: str, total: int) -> None:
        """A new stage begins; ``total`` is its amount of work in units of advance()."""

    def advance(self, amount: int) -> None:
        """``amount`` more of the stage is done."""


class Bar:
    """A rich progress bar."""

    def __init__(self, stream: TextIO) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            console=Console(file=stream),
        )
        self._task = self._progress.add_task("", start=False, visible=False)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def stage(self, text: str, total: int) -> None:
        self._progress.reset(self._task, description=text, total=total, visible=True)

    def advance(self, amount: int) -> None:
        self._progress.advance(self._task, amount)


class Lines:
    """Plain lines, for logs."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def stage(self, text: str, total: int) -> None:  # noqa: ARG002 - lines show no amounts
        self._stream.write(f"proxima: {text}\n")
        self._stream.flush()

    def advance(self, amount: int) -> None:
        pass


def reporter() -> Bar | Lines:
    """The reporter that suits stderr."""
    return Bar(sys.stderr) if sys.stderr.isatty() else Lines(sys.stderr)
