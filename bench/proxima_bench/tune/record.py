"""The file in which a search keeps what it has measured, so that the same command goes on where it was stopped.

It has the shape of a comparison, of the configurations that were measured again in turns, so that `proxima bench
report` shows it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proxima_bench.sweep import write
from proxima_config.errors import UsageError


@dataclass
class Record:
    """``trials`` by the name of their configuration; ``measurements`` as those of a comparison."""

    file: Path
    conditions: Mapping[str, Any]
    """All that results depend on besides the configurations."""
    trials: dict[str, Any] = field(default_factory=dict)
    measurements: list[dict[str, Any]] = field(default_factory=list)
    _others: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def begin(cls, file: Path, conditions: Mapping[str, Any], say: Callable[[str], None]) -> Record:
        """Goes on with what the file holds. Raises UsageError where that was measured under other conditions."""
        if not file.exists():
            return cls(file, conditions)
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            fingerprint, trials, measurements = (
                found["tune"]["fingerprint"],
                found["tune"]["trials"],
                found["measurements"],
            )
            counts = len(trials), len(measurements)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"--trials: {file} holds no trials to go on with; name another file") from error
        record = cls(file, conditions, trials, measurements)
        if fingerprint != record.fingerprint:
            raise UsageError(
                f"--trials: {file} holds trials of another model, load, objective or machine; name another file"
            )
        say(f"going on with {counts[0]} trials and {counts[1]} measurements of {file}")
        return record

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(self.conditions, sort_keys=True).encode()).hexdigest()[:16]

    def add_trial(self, name: str, trial: Mapping[str, Any]) -> None:
        self.trials[name] = dict(trial)
        self._write()

    def forget_trial(self, name: str) -> None:
        self.trials.pop(name, None)
        self._write()

    def report(self, arm: str, number: int) -> Mapping[str, Any] | None:
        found = (each["report"] for each in self.measurements if (each["arm"], each["round"]) == (arm, number))
        return next(found, None)

    def add_round(self, number: int, reports: Mapping[str, Mapping[str, Any]]) -> None:
        """What all arms did in one round."""
        kept = [each for each in self.measurements if each["round"] != number]
        added = [{"case": "", "arm": arm, "round": number, "report": dict(report)} for arm, report in reports.items()]
        self.measurements = [*kept, *added]
        self._write()

    def conclude(self, compared: Mapping[str, Any], **found: Any) -> None:
        """Adds what a comparison says of its measurements, and what came out of it all; others are no part of it."""
        names = {each["name"] for each in compared["arms"]}
        rounds = range(1, compared["rounds"] + 1)
        self.measurements = [each for each in self.measurements if each["arm"] in names and each["round"] in rounds]
        self._others = {**compared, "tune": found}
        self._write()

    def _write(self) -> None:
        tune = {
            **self._others.get("tune", {}),
            "fingerprint": self.fingerprint,
            "objective": self.conditions["objective"],
            "trials": self.trials,
        }
        plain = {"machine": self.conditions["machine"], "warnings": []}
        write(self.file, {**plain, **self._others, "tune": tune, "measurements": self.measurements})
