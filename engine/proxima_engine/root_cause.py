"""Why an engine process ended, in one line.

vLLM tells the parent only "Engine core initialization failed. See root cause above"; the cause is in the log of a
child or grandchild. The plugin (:mod:`proxima_engine.plugin`), which vLLM loads in every process, writes logged
exceptions into a directory named by an environment variable; here the parent reads them.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from proxima_config.errors import EngineStartError, ProximaError

DIRECTORY_VARIABLE = "PROXIMA_ENGINE_DIRECTORY"
# What vLLM logs with the exception that ends a process, deepest process first: a worker's error is the cause of the
# error that its engine core reports after it.
_FATAL = ("WorkerProc failed to start", "WorkerProc hit an exception", "EngineCore")
_FAILED_PROCESS = re.compile(r"'(?P<name>\w+)': (?P<code>-?\d+)")


@dataclass(frozen=True)
class _Record:
    time: float
    said: str
    error: str


class FailureHandler(logging.Handler):
    """Appends each logged exception to a file of this process."""

    def __init__(self, directory: Path) -> None:
        super().__init__(level=logging.ERROR)
        self._path = directory / f"failure-{os.getpid()}.jsonl"

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info is None or record.exc_info[1] is None:
            return
        line = {"time": time.time(), "said": record.getMessage(), "error": one_line(record.exc_info[1])}
        try:
            with self._path.open("a") as file:
                file.write(json.dumps(line) + "\n")
        except OSError:
            # The gateway is gone and has removed its directory; there is nobody left to tell.
            self.handleError(record)


class FailureLog:
    """The parent's view of what its engine processes wrote."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def explain_start(self, error: BaseException) -> ProximaError:
        """Turn what the constructor raised into an error whose message is the root cause."""
        if isinstance(error, ProximaError):
            return error
        if cause := self._cause():
            return EngineStartError(cause)
        said = one_line(error)
        codes = {match["name"]: int(match["code"]) for match in _FAILED_PROCESS.finditer(said)}
        if killed := {name: -code for name, code in codes.items() if code < 0}:
            return EngineStartError(_killed(killed))
        return EngineStartError(said)

    def explain_death(self, exit_codes: dict[str, int]) -> str:
        """One line for an engine that died after it was ready."""
        killed = {name: -code for name, code in exit_codes.items() if code < 0}
        cause = self._cause() or (_killed(killed) if killed else "its process ended without saying why")
        return f"the engine died: {cause}"

    def _cause(self) -> str | None:
        records = self._records()
        for said in _FATAL:
            for record in reversed(records):
                if record.said.startswith(said):
                    return record.error
        return records[0].error if records else None

    def _records(self) -> list[_Record]:
        records = []
        for path in self._directory.glob("failure-*.jsonl"):
            # A process that was killed while writing leaves half a line.
            complete = [line for line in path.read_text().splitlines() if line.endswith("}")]
            records += [_Record(**json.loads(line)) for line in complete]
        return sorted(records, key=lambda record: record.time)


def one_line(error: BaseException) -> str:
    """`Type: message` of an exception on a single line; of a pydantic error the message of its first entry."""
    entries = getattr(error, "errors", None)
    if callable(entries) and type(error).__name__ == "ValidationError":
        first = entries()[0]
        said = " ".join(str(first["msg"]).removeprefix("Value error, ").split())
        where = ".".join(map(str, first["loc"]))
        return f"{where}: {said}" if where else said
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


def _killed(signals: dict[str, int]) -> str:
    name, number = next(iter(signals.items()))
    hint = " (out of memory?)" if number == signal.SIGKILL else ""
    return f"process {name} was ended by {signal.Signals(number).name}{hint}"
