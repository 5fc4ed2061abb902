"""Trials: one configuration under one load in an engine of its own, kept in a file as they end."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from proxima_bench.number_format import rounded
from proxima_bench.tune.configuration import Configuration
from proxima_bench.tune.record import Record


class Status(StrEnum):
    MEASURED = "measured"
    OUT_OF_MEMORY = "out_of_memory"
    CRASHED = "crashed"
    """It did not start, died, or answered too little, for another reason."""


# What vLLM, CUDA, torch and Python say when memory is what lacks.
_MEMORY = re.compile(
    r"out of memory(?!\?)|OutOfMemory|MemoryError|bad_alloc|STATUS_ALLOC_FAILED|can(?:'t|not) allocate memory|"
    r"No available memory for the cache|larger than the available KV cache memory|"
    r"Free memory on device|(?:less|larger|more) than (?:desired|requested) .*memory|Available memory .* is less",
    re.IGNORECASE,
)
_KILLED = re.compile(r"ended by SIGKILL|exit code -9\b")


@dataclass(frozen=True)
class Trial:
    status: Status
    reason: str
    """Why it failed; empty otherwise."""
    value: float
    """The objective, higher is better; 0 for a failure."""
    kv_full: bool = False
    """Whether the KV pool was what requests waited for."""
    prompt_tokens: float | None = None
    """Of a request, mean."""
    about: str = ""
    """Other figures, for people."""

    @property
    def failed(self) -> bool:
        return self.status is not Status.MEASURED


Run = Callable[[Configuration], Awaitable[Trial]]
"""Starts an engine, measures it, and ends it."""


def failure(reason: str, *, oom_killed: bool = False) -> Trial:
    """``oom_killed``: whether the kernel killed for memory meanwhile. A process killed by anybody else has crashed."""
    memory = _MEMORY.search(reason) or (oom_killed and _KILLED.search(reason))
    return Trial(Status.OUT_OF_MEMORY if memory else Status.CRASHED, reason, 0.0)


def oom_kills(vmstat: Path = Path("/proc/vmstat")) -> int:
    """How often the kernel has killed for lack of memory, since this machine was started; 0 where it does not say."""
    try:
        found = re.search(r"^oom_kill (\d+)$", vmstat.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0


class Trials:
    """Runs each configuration once, whoever asks how often, also over several calls of the command.

    Only a crash of an earlier call is tried again: what it met, such as a device that was still held, may be gone.
    """

    def __init__(self, run: Run, record: Record, say: Callable[[str], None]) -> None:
        self._run = run
        self._record = record
        self._say = say
        for name in [name for name, known in record.trials.items() if _trial(known).status is Status.CRASHED]:
            record.forget_trial(name)

    def forget(self, configuration: Configuration) -> None:
        self._record.forget_trial(str(configuration))

    async def of(self, configuration: Configuration) -> Trial:
        name = str(configuration)
        if (known := self._record.trials.get(name)) is not None:
            return _trial(known)
        self._say(f"trying {name}")
        trial = await self._run(configuration)
        self._record.add_trial(name, asdict(trial))
        result = (
            f"{rounded(trial.value)}; {trial.about}"
            if not trial.failed
            else f"{trial.status}: {first_line(trial.reason)}"
        )
        self._say(f"  {result}")
        return trial


def first_line(text: str) -> str:
    return next(iter(text.splitlines()), "")


def _trial(known: Mapping[str, Any]) -> Trial:
    return Trial(**{**known, "status": Status(known["status"])})
