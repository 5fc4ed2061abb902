"""A cost profile from steps that a real engine logged (`telemetry.step_log`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from proxima_config.errors import UsageError
from proxima_engine.lab.cost import Fitted
from proxima_engine.scheduling.step_work import StepWork

FEWEST_STEPS = 100
_WORK = tuple(field.name for field in fields(StepWork))
_IDLE_S = 0.05
"""A longer pause between two steps means that nobody asked for anything, not that the host was busy."""
_HELD_OUT = 5
"""Every fifth step is not fitted to, and judges the fit."""
Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Step:
    """One logged step; times in seconds of the engine's monotonic clock."""

    work: StepWork
    started_s: float
    scheduled_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class Calibration:
    cost: Fitted
    steps: int
    median_error: float
    """Median of |predicted - measured| / measured over the steps that were held out."""
    total_error: float
    """(predicted - measured) / measured of their times together."""


def read(path: Path) -> list[Step]:
    """Raises UsageError that names the line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"--steps: {path} cannot be read ({getattr(error, 'strerror', None) or 'not UTF-8'})"
        ) from error
    return [_step(f"{path}:{number}", line) for number, line in enumerate(lines, start=1)]


def _step(place: str, line: str) -> Step:
    try:
        entry = json.loads(line)
        work = StepWork(**{name: int(entry[name]) for name in _WORK})
        return Step(work, float(entry["started_s"]), float(entry["scheduled_s"]), float(entry["ended_s"]))
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"--steps: {place}: not a line of a step log (telemetry.step_log)") from error


def calibrate(steps: Sequence[Step]) -> Calibration:
    """Fit by least squares of the relative error, no term below zero. Raises UsageError for too few steps."""
    if len(steps) < FEWEST_STEPS:
        raise UsageError(f"--steps: {len(steps)} steps are too few; at least {FEWEST_STEPS} are needed")
    held_out = steps[::_HELD_OUT]
    fitted = [step for index, step in enumerate(steps) if index % _HELD_OUT]
    weights = _fit(_terms(fitted), _seconds(fitted))
    step, token, sequence, context_token, attention_pair = (float(weight) for weight in weights)
    cost = Fitted(step, token, sequence, context_token, attention_pair, _host_gap_s(steps))
    predicted = np.array([cost.step_s(step.work) for step in held_out])
    measured = _seconds(held_out)
    return Calibration(
        cost=cost,
        steps=len(steps),
        median_error=float(np.median(np.abs(predicted - measured) / measured)),
        total_error=float(predicted.sum() / measured.sum() - 1),
    )


def _terms(steps: Sequence[Step]) -> Matrix:
    """Columns in the order of Fitted's weights."""
    rows = [
        (1, step.work.tokens, step.work.sequences, step.work.context_tokens, step.work.attention_pairs)
        for step in steps
    ]
    return np.array(rows, dtype=np.float64)


def _seconds(steps: Sequence[Step]) -> Matrix:
    """Time on the device: from dispatch, or from the end of the step before where that was later, to the end."""
    ends = [steps[0].scheduled_s, *(step.ended_s for step in steps[:-1])]
    busy = [step.ended_s - max(step.scheduled_s, before) for step, before in zip(steps, ends, strict=True)]
    return np.array([max(each, 1e-6) for each in busy])


def _fit(terms: Matrix, seconds: Matrix) -> Matrix:
    """Non-negative least squares by leaving out the most negative term until none is: five terms need no more."""
    relative = terms / seconds[:, None]
    used = list(range(terms.shape[1]))
    while True:
        # Columns differ by six orders of magnitude.
        scale = np.linalg.norm(relative[:, used], axis=0)
        scale[scale == 0] = 1.0
        found, *_ = np.linalg.lstsq(relative[:, used] / scale, np.ones(len(seconds)), rcond=None)
        if (found >= 0).all():
            weights = np.zeros(terms.shape[1])
            weights[used] = found / scale
            return weights
        used.pop(int(np.argmin(found)))


def _host_gap_s(steps: Sequence[Step]) -> float:
    """From the end of a step to the dispatch of the next, where one followed at once; 0 where planning overlaps."""
    gaps = [after.scheduled_s - before.ended_s for before, after in pairwise(steps)]
    return max(0.0, median([gap for gap in gaps if gap < _IDLE_S] or [0.0]))
