"""What a timeline of vLLM's torch profiler says: steps, the time between them, and where they spend it.

The file is Chrome's trace format, as Perfetto and chrome://tracing read it.
"""

from __future__ import annotations

import gzip
import json
import math
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from proxima_config.errors import ProximaError

# vLLM's worker marks each step so: prompts that it computes (their tokens), and requests that decode (their tokens).
_STEP = re.compile(r"execute_context_(\d+)\((\d+)\)_generation_(\d+)\((\d+)\)")
# Its parts, which it marks where VLLM_CUSTOM_SCOPES_FOR_PROFILING is set.
_PART, _FORWARD = "gpu_model_runner: ", "gpu_model_runner: forward"
_KERNEL, _OPERATOR = "kernel", "cpu_op"
_US = 1e-6
_MOST_OPERATORS = 12


@dataclass(frozen=True)
class Step:
    start_s: float
    """Since the capture began."""
    duration_s: float
    """Sampling included."""
    forward_s: float
    """The model itself, of that; 0 where the worker does not mark it."""
    prompts: int
    prompt_tokens: int
    decodes: int
    decode_tokens: int

    @property
    def end_s(self) -> float:
        return self.start_s + self.duration_s


@dataclass(frozen=True)
class Operator:
    name: str
    total_s: float
    """Without the operators that it calls."""
    calls: int


@dataclass(frozen=True)
class Capture:
    """One arm, for as long as the profile was taken."""

    duration_s: float
    steps: Sequence[Step]
    operators: Sequence[Operator]
    """Those that took most, longest first; kernels where there is a GPU."""
    device: str
    """`gpu`, or `cpu` where operators compute themselves."""

    @property
    def busy_share(self) -> float:
        """Of the time from the first step's begin to the last one's end, the share in which a step ran."""
        whole = self.steps[-1].end_s - self.steps[0].start_s
        return sum(step.duration_s for step in self.steps) / whole if whole else 0.0

    @property
    def gaps_s(self) -> list[float]:
        """From each step's end to the next one's begin."""
        return [
            max(0.0, after.start_s - before.end_s) for before, after in zip(self.steps, self.steps[1:], strict=False)
        ]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def read(path: Path) -> Capture:
    """Raises ProximaError for a file that holds no step."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            events = json.load(file)["traceEvents"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ProximaError(f"{path}: is no trace of the torch profiler ({type(error).__name__}: {error})") from error
    complete = [each for each in events if each.get("ph") == "X" and "dur" in each]
    steps = _steps(complete)
    if not steps:
        raise ProximaError(f"{path}: no step of the engine began and ended while the profile was taken")
    begin_us = min(each["ts"] for each in complete)
    end_us = max(each["ts"] + each["dur"] for each in complete)
    kernels = [each for each in complete if each.get("cat") == _KERNEL]
    return Capture(
        duration_s=(end_us - begin_us) * _US,
        steps=[_shifted(step, begin_us * _US) for step in steps],
        operators=_longest(kernels or [each for each in complete if each.get("cat") == _OPERATOR]),
        device="gpu" if kernels else "cpu",
    )


def _steps(events: Iterable[Mapping[str, Any]]) -> list[Step]:
    marks = _marks(events)
    starts_us = [each["ts"] for each in marks]
    begun = [(mark, match) for mark in marks if (match := _STEP.search(mark["name"]))]
    nexts_us = [*(mark["ts"] for mark, _ in begun[1:]), math.inf]
    found = []
    for (mark, match), next_us in zip(begun, nexts_us, strict=False):
        # The mark ends with the logits; sampling is part of the step too.
        inside = marks[bisect_left(starts_us, mark["ts"]) : bisect_left(starts_us, next_us)]
        parts = [each for each in inside if each["name"].startswith(_PART)]
        end_us = max(each["ts"] + each["dur"] for each in [mark, *parts])
        forward_us = sum(each["dur"] for each in parts if each["name"] == _FORWARD)
        counts = map(int, match.groups())
        found.append(Step(mark["ts"] * _US, (end_us - mark["ts"]) * _US, forward_us * _US, *counts))
    return found


def _marks(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """As they begin: the GPU's side where there is one, for what a worker enqueues in a moment takes longer there."""
    on_cpu, streams = list[Mapping[str, Any]](), defaultdict[Any, list[Mapping[str, Any]]](list)
    for event in events:
        if event.get("cat") == "user_annotation":
            on_cpu.append(event)
        elif event.get("cat") == "gpu_user_annotation":
            streams[(event["pid"], event["tid"])].append(event)
    # A mark stands on every stream that it used; the one that computes, not copies, has it for longest.
    on_gpu = max(streams.values(), key=_in_steps_us, default=[])
    return sorted(on_gpu if _in_steps_us(on_gpu) else on_cpu, key=lambda each: each["ts"])


def _in_steps_us(marks: Iterable[Mapping[str, Any]]) -> float:
    return float(sum(each["dur"] for each in marks if _STEP.search(each["name"])))


def _shifted(step: Step, begin_s: float) -> Step:
    return Step(**{**asdict(step), "start_s": step.start_s - begin_s})


def _longest(events: Iterable[Mapping[str, Any]]) -> list[Operator]:
    own_s, calls = defaultdict[str, float](float), defaultdict[str, int](int)
    by_thread = defaultdict[Any, list[Mapping[str, Any]]](list)
    for event in events:
        by_thread[(event["pid"], event["tid"])].append(event)
    for thread in by_thread.values():
        open_events: list[tuple[str, float]] = []
        for event in sorted(thread, key=lambda each: (each["ts"], -each["dur"])):
            while open_events and open_events[-1][1] <= event["ts"]:
                open_events.pop()
            if open_events:
                own_s[open_events[-1][0]] -= event["dur"] * _US
            own_s[event["name"]] += event["dur"] * _US
            calls[event["name"]] += 1
            open_events.append((event["name"], event["ts"] + event["dur"]))
    longest = sorted(own_s, key=lambda name: -own_s[name])[:_MOST_OPERATORS]
    return [Operator(name, own_s[name], calls[name]) for name in longest]
