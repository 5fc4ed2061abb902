"""What a policy has to offer, and what it may."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from proxima_config.hints import RequestClass
from proxima_engine.policy.plan import Plan
from proxima_engine.policy.view import RunningRequest, StepView, WaitingRequest


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """A request that ended by itself, and so tells something about lengths; aborted ones do not."""

    request_id: str
    prompt_tokens: int
    output_tokens: int
    cap_tokens: int
    """Its declared cap: with ``output_tokens`` at the cap, the answer was cut and would have been longer."""
    request_class: RequestClass = RequestClass.DEFAULT


class Policy(Protocol):
    def plan(self, view: StepView) -> Plan:
        """Decide one step. Reads no clock: `view.now_s` is the time."""
        ...


@runtime_checkable
class LearnsFromFinished(Protocol):
    """A policy that wants to know how long answers turn out to be."""

    def finished(self, request: FinishedRequest) -> None:
        """Called before the next plan after the request ended."""
        ...


@runtime_checkable
class ExpectsStarts(Protocol):
    """A policy that can tell when those whom it holds are going to start."""

    def expected_starts_s(
        self, running: Sequence[RunningRequest], waiting: Sequence[WaitingRequest], finished_per_s: float
    ) -> Sequence[float | None]:
        """Seconds until each of the ``waiting`` starts if the ``running`` run now and ``finished_per_s`` requests end.
        Earlier than `Plan.head_start_s`, which says by when the first fits at the plan's confidence."""
        ...


@runtime_checkable
class ChecksForecasts(Protocol):
    """A policy that looks back at what it forecast."""

    @property
    def forecasts_checked(self) -> int:
        """Forecasts of block demand whose time has come, since the start."""
        ...

    @property
    def forecasts_exceeded(self) -> int:
        """Those of them that demand was above."""
        ...
