"""Arms under growing load: until saturation, and then closer to where each stops attaining its target."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from proxima_bench import machine, workload
from proxima_bench.arms import Arm
from proxima_bench.arrivals import Closed, Poisson, Replay
from proxima_bench.capacity import Point, capacity, next_rate
from proxima_bench.comparison import SATURATING_CONCURRENCY
from proxima_bench.loads import Load
from proxima_config.errors import ProximaError, UsageError

SATURATION = "saturation"
Measure = Callable[[Arm, Load, str], Awaitable[Mapping[str, Any]]]
"""Sends a load to an arm, with a title for people; gives the report."""
Reach = Callable[[Arm], AbstractAsyncContextManager[Any]]
"""Whatever has to be open while an arm is measured."""


@dataclass(frozen=True)
class SweepPlan:
    arms: Sequence[Arm]
    load: Load
    """Its arrivals are replaced; everything else stays."""
    model: str
    engine_flags: Sequence[str]
    """Of every arm that is started."""
    multiples: Sequence[float]
    """Rates to offer, as multiples of what the first arm sustains in a closed loop."""
    rates: Sequence[float]
    """Rates to offer, requests a second; in place of the multiples where there are any."""
    bisections: int
    """Further rates for each arm."""
    target: float
    """Attainment that capacity is about."""
    restart: bool
    api_key: str | None = None

    @property
    def fingerprint(self) -> str:
        """Of all that results depend on: a sweep may go on only where this is the same."""
        kept = {**asdict(self), "load": self.load.model_dump(mode="json"), "api_key": None, "bisections": None}
        kept["machine"] = machine.describe()
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


@dataclass
class Sweep:
    """What has been measured; kept in ``file`` after each measurement, where there is one."""

    plan: SweepPlan
    file: Path | None = None
    measurements: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def begin(cls, plan: SweepPlan, file: Path | None) -> Sweep:
        """Goes on with what the file holds. Raises UsageError where that is of another sweep."""
        if file is None or not file.exists():
            return cls(plan, file)
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            fingerprint, measurements = found["sweep"]["fingerprint"], found["measurements"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"--out: {file} is no sweep to go on with; name another file") from error
        if fingerprint != plan.fingerprint:
            raise UsageError(
                f"--out: {file} holds a sweep of other arms, loads, targets or versions, or of another machine; "
                "name another file"
            )
        return cls(plan, file, measurements)

    def report(self, arm: Arm, case: str) -> Mapping[str, Any] | None:
        found = (each["report"] for each in self.measurements if (each["arm"], each["case"]) == (arm.name, case))
        return next(found, None)

    def add(self, arm: Arm, case: str, report: Mapping[str, Any]) -> None:
        self.measurements.append({"case": case, "arm": arm.name, "round": 1, "report": report})
        if self.file is not None:
            write(self.file, self.as_json())

    def points(self, arm: Arm) -> list[Point]:
        found = (each for each in self.measurements if each["arm"] == arm.name and each["case"] != SATURATION)
        return [Point.of(float(each["case"]), each["report"]) for each in found]

    def saturation_rps(self) -> float:
        report = self.report(self.plan.arms[0], SATURATION)
        return float(report["qps"]) if report else 0.0

    def as_json(self) -> dict[str, Any]:
        """In the shape of a comparison, so that one report shows both; the closed loop stands apart."""
        arms = {arm.name: self._found(arm) for arm in self.plan.arms if self.points(arm)}
        warnings = [f"{each['arm']}: {text}" for each in self.measurements for text in each["report"]["warnings"]]
        return {
            "machine": machine.describe(),
            "baseline": self.plan.arms[0].name,
            "sweep": {
                "fingerprint": self.plan.fingerprint,
                "target": self.plan.target,
                "saturation_rps": self.saturation_rps() or None,
                "arms": arms,
            },
            "warnings": list(dict.fromkeys(warnings)),
            "measurements": self.measurements,
        }

    def _found(self, arm: Arm) -> dict[str, Any]:
        return asdict(capacity(self.points(arm), self.plan.target))


def complete(found: Sweep) -> bool:
    """Whether nothing is left to measure."""
    rates = _rates(found)
    return bool(rates) and not any(_missing(found, arm, rates) or _closer(found, arm, rates) for arm in found.plan.arms)


async def sweep(found: Sweep, reach: Reach, measure: Measure) -> None:
    """Measures what is missing. Raises ProximaError where an arm fails; what was measured is kept."""
    plan = found.plan
    if not plan.rates and found.report(plan.arms[0], SATURATION) is None:
        async with reach(plan.arms[0]):
            closed = plan.load.model_copy(update={"shape": Closed(concurrency=SATURATING_CONCURRENCY)})
            report = await measure(plan.arms[0], closed, f"{plan.arms[0].name}, saturation")
            if not report["qps"]:
                raise ProximaError(f"{plan.arms[0].name} completed no request in a closed loop")
            found.add(plan.arms[0], SATURATION, report)
    rates = _rates(found)
    for arm in plan.arms:
        if _missing(found, arm, rates) or _closer(found, arm, rates):
            async with reach(arm):
                for rate in _missing(found, arm, rates):
                    await _measure_at(found, arm, rate, measure)
                while closer := _closer(found, arm, rates):
                    await _measure_at(found, arm, closer, measure)


def _rates(found: Sweep) -> list[float]:
    """Those that every arm is measured at; none while the multiples are of something unknown."""
    plan, saturation_rps = found.plan, found.saturation_rps()
    return list(plan.rates) or [round(multiple * saturation_rps, 3) for multiple in plan.multiples if saturation_rps]


def _missing(found: Sweep, arm: Arm, rates: Sequence[float]) -> list[float]:
    return [rate for rate in rates if found.report(arm, f"{rate:g}") is None]


def _closer(found: Sweep, arm: Arm, rates: Sequence[float]) -> float | None:
    """The next rate of a bisection, while there are any left."""
    points = found.points(arm)
    if not len(rates) <= len(points) < len(rates) + found.plan.bisections:
        return None
    rate = next_rate(points, found.plan.target)
    return None if rate is None else round(rate, 3)


async def _measure_at(found: Sweep, arm: Arm, rate: float, measure: Measure) -> None:
    load = found.plan.load
    if isinstance(load.shape, Replay):
        load = workload.at_rate(load, rate)
    else:
        load = load.model_copy(update={"shape": Poisson(rate_rps=rate)})
    # Another seed for each rate, so that no prompt is met again in a prefix cache; the same for all arms.
    seed = load.seed + int(rate * 1000)
    report = await measure(arm, load.model_copy(update={"seed": seed}), f"{arm.name} at {rate:g}/s")
    found.add(arm, f"{rate:g}", report)


def write(path: Path, value: Any) -> None:
    """In one piece: a file that is killed while it is written would be no file to go on with."""
    aside = path.with_name(f".{path.name}.partial")
    try:
        aside.write_text(json.dumps(value, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(aside, path)  # noqa: PTH105 - the name says that an old one is replaced
    except OSError as error:
        raise ProximaError(f"{path}: cannot be written ({error.strerror})") from error
