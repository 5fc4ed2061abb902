"""One line of JSON a step: what it computed and when. For `proxima lab calibrate`, and for looking closely."""

from __future__ import annotations

import json
import time
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxima_engine.scheduling.step_work import step_work

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput


class StepLog:
    """Times are readings of the monotonic clock in seconds."""

    def __init__(self, path: Path) -> None:
        # Line by line, so that a killed engine leaves whole lines.
        self._file = path.open("a", buffering=1, encoding="utf-8")
        self._in_flight: deque[dict[str, Any]] = deque()

    def scheduled(self, output: SchedulerOutput, started_s: float) -> None:
        """``started_s`` is when planning this step began."""
        entry: dict[str, Any] = {"started_s": started_s, "scheduled_s": time.monotonic(), **asdict(step_work(output))}
        self._in_flight.append(entry)

    def ended(self) -> None:
        """The oldest step's results are here."""
        entry = self._in_flight.popleft()
        entry["ended_s"] = time.monotonic()
        if entry["tokens"]:
            self._file.write(json.dumps(entry) + "\n")

    def close(self) -> None:
        self._file.close()
