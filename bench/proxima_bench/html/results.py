"""Results of any kind, as JSON files, in one shape that can be drawn."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from proxima_bench import machine
from proxima_config.errors import UsageError

Report = Mapping[str, Any]

RPS, STREAMS, MULTIPLE, CASE = "rps", "streams", "multiple", "case"
"""What a load is counted in: requests offered a second, streams at once, multiples of a recorded rate, or numbered."""


@dataclass(frozen=True)
class Measured:
    """One arm under one load, once. ``report`` has the keys of `bench serve --json`, as far as they are known."""

    arm: str
    load: float
    round: int
    report: Report


@dataclass(frozen=True)
class Result:
    """What one file holds."""

    name: str
    kind: str
    sentence: str
    """What was sent, and when a request attained."""
    unit: str
    measured: Sequence[Measured]
    ttft_s: float
    stall_s: float
    machine: str = ""
    machine_is_client: bool = False
    """All arms were servers that ran already, wherever."""
    ratios: Mapping[float, Mapping[str, Any]] = field(default_factory=dict)
    """To the baseline, by load: {arm: {figure: {"ratio": ...}}}."""
    baseline: str | None = None
    warnings: Sequence[str] = ()
    findings: Mapping[str, Any] = field(default_factory=dict)
    """What a sweep found for each arm."""
    tune: Mapping[str, Any] = field(default_factory=dict)
    """What a search for settings tried."""
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def arms(self) -> list[str]:
        return list(dict.fromkeys(each.arm for each in self.measured))

    @property
    def loads(self) -> list[float]:
        return sorted({each.load for each in self.measured})

    @property
    def rounds(self) -> int:
        return max(each.round for each in self.measured)

    def of(self, arm: str, load: float) -> list[Measured]:
        return [each for each in self.measured if (each.arm, each.load) == (arm, load)]


def read(path: Path) -> Result:
    """Raises UsageError for a file that is none of these results."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise UsageError(f"{path}: is no JSON ({error})") from error
    try:
        return _result(path.stem, found)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise UsageError(
            f"{path}: is no result of `proxima bench serve`, `compare` or `sweep`, or of `proxima lab run`, `compare` "
            f"or `sweep`, with --json ({type(error).__name__}: {error})"
        ) from error


def _result(name: str, found: Mapping[str, Any]) -> Result:
    if "measurements" in found:
        return _compared(name, found)
    if "loads" in found:
        return _lab(name, found, "lab sweep", _lab_sweep(found))
    if "setting" in found:
        points = [Measured(arm, 1.0, 1, _lab_report(figures)) for arm, figures in found["arms"].items()]
        return _lab(name, found, "lab", points)
    report = dict(found)
    load, unit = _load_of(found)
    return Result(
        name=name,
        kind="serve",
        sentence=sentence(found["load"]),
        unit=unit,
        measured=[Measured(found["load"]["model"] or found["load"]["url"], load, 1, report)],
        ttft_s=found["slo"]["ttft_s"],
        stall_s=found["slo"]["stall_s"],
        warnings=found["warnings"],
        details=found["load"],
    )


def _compared(name: str, found: Mapping[str, Any]) -> Result:
    """Of `compare` and `sweep`."""
    # The closed loop of a sweep only tells which rates to offer.
    measurements = [each for each in found["measurements"] if each["case"] != "saturation"]
    if not measurements:
        raise UsageError(f"{name}: nothing but the closed loop, which tells what rates to offer, is measured yet")
    loads, unit = _loads(measurements)
    first = measurements[0]["report"]
    kind = next((kind for kind in ("sweep", "tune") if kind in found), "compare")
    return Result(
        name=name,
        kind=kind,
        sentence=sentence(first["load"], with_arrivals=len(loads) == 1),
        unit=unit,
        measured=[Measured(each["arm"], loads[each["case"]], each["round"], each["report"]) for each in measurements],
        ttft_s=first["slo"]["ttft_s"],
        stall_s=first["slo"]["stall_s"],
        machine=machine.sentence(found["machine"]),
        machine_is_client=bool(found.get("arms")) and all(arm.get("url") for arm in found["arms"]),
        ratios={loads[case["name"]]: case["arms"] for case in found.get("cases", ()) if case["name"] in loads},
        baseline=found.get("baseline"),
        warnings=found["warnings"],
        findings=found.get("sweep", {}),
        tune=found.get("tune", {}),
        details=first["load"],
    )


def _loads(measurements: Sequence[Mapping[str, Any]]) -> tuple[dict[str, float], str]:
    """The load of each case, and its unit; their numbers where cases have no loads that tell them apart."""
    found: dict[str, list[tuple[float, str]]] = {}
    for each in measurements:
        found.setdefault(each["case"], []).append(_load_of(each["report"]))
    # What a ramp offered differs from one measurement to the next.
    loads = {case: median(load for load, _ in each) for case, each in found.items()}
    units = {unit for each in found.values() for _, unit in each}
    if len(units) > 1 or len(set(loads.values())) < len(loads):
        return {case: float(number) for number, case in enumerate(loads, 1)}, CASE
    return loads, units.pop()


def _lab(name: str, found: Mapping[str, Any], kind: str, measured: Sequence[Measured]) -> Result:
    setting = found["setting"]
    return Result(
        name=name,
        kind=kind,
        sentence=setting["sentence"],
        unit=MULTIPLE,
        measured=measured,
        ttft_s=setting["slo"]["ttft_s"],
        stall_s=setting["slo"]["stall_s"],
        details=setting,
    )


def _lab_sweep(found: Mapping[str, Any]) -> list[Measured]:
    return [
        Measured(arm, load, 1, _lab_report(figures))
        for arm, curve in found["arms"].items()
        for load, figures in _with_bisected(found["loads"], curve)
    ]


def _with_bisected(loads: Sequence[float], curve: Mapping[str, Any]) -> Iterator[tuple[float, Mapping[str, Any]]]:
    yield from zip(loads, curve["figures"], strict=True)
    for load, attainment in curve["bisected"]:
        yield load, {"attainment": attainment, "requests": curve["figures"][0]["requests"]}


def _lab_report(figures: Mapping[str, Any]) -> Report:
    """The lab's flat figures under the names of a measurement."""
    report: dict[str, Any] = {"errors": {}, "server": {}}
    for key, value in figures.items():
        latency, _, statistic = key.removesuffix("_s").rpartition("_")
        if latency in ("ttft", "e2e", "stall"):
            report.setdefault(f"{latency}_s", {})[statistic] = value
        else:
            report[key] = value
    if refused := figures.get("refused"):
        report["errors"] = {"refused": refused}
    offered = figures["requests"]
    report["requests"] = {"offered": offered, "attained": round(figures["attainment"] * offered)}
    if "preemptions" in figures:
        report["server"] = {
            "preemptions": figures["preemptions"],
            "kv_use": {"mean": figures["pool_use_mean"]},
            "running": {"mean": figures["running_mean"]},
        }
    return report


def _load_of(report: Report) -> tuple[float, str]:
    shape = report["load"]["shape"]
    if shape["kind"] == "closed":
        return float(shape["concurrency"]), STREAMS
    if rate := shape.get("rate_rps"):
        return float(rate), RPS
    # A ramp, or a trace at its own pace: what was offered.
    return report["requests"]["offered"] / report["duration_s"], RPS


def sentence(load: Mapping[str, Any], *, with_arrivals: bool = True) -> str:
    """What was sent, and when a request attained."""
    preset = f"{load['preset']}: " if load["preset"] else ""
    arrivals = f", {load['arrivals']}" if with_arrivals else ""
    return (
        f"{preset}{load['requests']} requests{arrivals}, {load['lengths']} lengths; attained with TTFT ≤ "
        f"{load['slo_ttft_s']:g} s and stall ≤ {load['slo_stall_s']:g} s"
    )
