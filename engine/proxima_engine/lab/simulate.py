"""One arm under one workload: feeds the engine and writes down what each client would have seen."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from proxima_engine.lab.engine import LabEngine, LabError, StepEnd
from proxima_engine.lab.requests import LabRequest, Workload
from proxima_engine.lab.shortcuts import rare_collections
from proxima_engine.policy.protocol import ChecksForecasts

_IDLE_S = 0.01
"""How far time moves when requests wait and the scheduler starts none: policies with time bounds look again."""
_LONGEST_IDLE_S = 3600.0
"""Nobody computes for so long only if the scheduler is stuck."""


@dataclass(slots=True)
class Record:
    """One request as its client saw it; times in seconds of virtual time."""

    request: LabRequest
    sent_s: float
    first_token_s: float | None = None
    last_token_s: float = 0.0
    tokens: int = 0
    stall_s: float = 0.0
    """Longest gap between two tokens."""
    stall_at_s: float | None = None
    """When it began."""
    ended_s: float | None = None
    refused: bool = False
    """It could never fit: a server says so at once."""

    def token(self, now_s: float) -> None:
        if self.first_token_s is None:
            self.first_token_s = now_s
        elif now_s - self.last_token_s > self.stall_s:
            self.stall_s, self.stall_at_s = now_s - self.last_token_s, self.last_token_s
        self.last_token_s = now_s
        self.tokens += 1

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_token_s is None else self.first_token_s - self.sent_s

    @property
    def e2e_s(self) -> float | None:
        return None if self.ended_s is None else self.ended_s - self.sent_s


@dataclass(slots=True)
class Run:
    """What a simulation recorded."""

    records: list[Record] = field(default_factory=list)
    end_s: float = 0.0
    last_arrival_s: float = 0.0
    tokens_while_arriving: int = 0
    """Tokens that came until the last request was sent."""
    steps: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    pool_use_sum_s: float = 0.0
    """Share of blocks in use, summed over time."""
    running_sum_s: float = 0.0
    busy_s: float = 0.0
    """Time during which anybody was running."""
    wall_s: float = 0.0
    """Real time that scheduling and output handling took."""
    forecasts: tuple[int, int] | None = None
    """Forecasts of demand that the policy has checked, and those of them that were exceeded; None where it checks none.
    """


def simulate(engine: LabEngine, workload: Workload, *, longest_tokens: int) -> Run:
    """Run a workload to its end, and check that every request ended and every block came back.

    ``longest_tokens`` is the engine's context: a prompt that leaves no room for an answer is refused, as a server
    would. Raises LabError when the scheduler loses something or stands still.
    """
    run = Run()
    client = _Client(engine, workload, run, longest_tokens)
    started_s = time.perf_counter()
    with rare_collections():
        while client.send_due():
            _step(engine, client, run)
    run.wall_s = time.perf_counter() - started_s
    run.end_s = max((record.ended_s or 0.0 for record in run.records), default=0.0)
    run.preemptions, run.recomputed_tokens = engine.preemptions, engine.recomputed_tokens
    policy = getattr(engine.scheduler, "proxima_policy", None)
    if isinstance(policy, ChecksForecasts):
        run.forecasts = policy.forecasts_checked, policy.forecasts_exceeded
    engine.check_integrity()
    return run


def _step(engine: LabEngine, client: _Client, run: Run) -> None:
    before_s, running, used = engine.now_s, engine.running, engine.used_blocks
    end = engine.advance()
    if end is None:
        client.wait()
        return
    client.receive(end)
    spent_s = engine.now_s - before_s
    run.steps += 1
    run.busy_s += spent_s
    run.running_sum_s += spent_s * max(running, engine.running)
    run.pool_use_sum_s += spent_s * max(used, engine.used_blocks) / engine.blocks


class _Client:
    def __init__(self, engine: LabEngine, workload: Workload, run: Run, longest_tokens: int) -> None:
        self._engine = engine
        self._unsent = deque(workload.requests)
        self._concurrency = workload.concurrency
        self._run = run
        self._longest_tokens = longest_tokens
        self._open: dict[str, Record] = {}
        self._idle_since_s: float | None = None

    def send_due(self) -> bool:
        """Send what is due; False when everything was sent and answered."""
        while self._unsent and self._is_due(self._unsent[0]):
            self._send(self._unsent.popleft())
        return bool(self._unsent or self._open)

    def receive(self, end: StepEnd) -> None:
        self._idle_since_s = None
        if self._unsent:
            self._run.tokens_while_arriving += len(end.tokens)
        now_s, records = end.now_s, self._open
        for request_id in end.tokens:
            records[request_id].token(now_s)
        for request_id in end.finished:
            self._open.pop(request_id).ended_s = end.now_s

    def wait(self) -> None:
        """Nothing computes: to the next arrival, or a little further."""
        engine = self._engine
        if not self._open:
            engine.wait_until(self._unsent[0].arrival_s)
            return
        if self._idle_since_s is None:
            self._idle_since_s = engine.now_s
        if engine.now_s - self._idle_since_s > _LONGEST_IDLE_S:
            raise LabError(f"{len(self._open)} requests wait and none was started for {_LONGEST_IDLE_S:g} s")
        engine.wait_until(engine.now_s + _IDLE_S)

    def _is_due(self, request: LabRequest) -> bool:
        if self._concurrency is not None:
            return len(self._open) < self._concurrency
        return request.arrival_s <= self._engine.now_s

    def _send(self, request: LabRequest) -> None:
        # An open loop's request was sent when it was due; the engine meets it between two steps.
        record = Record(request, self._engine.now_s if self._concurrency is not None else request.arrival_s)
        self._run.records.append(record)
        self._run.last_arrival_s = record.sent_s
        if request.input_tokens + 1 > self._longest_tokens:
            record.refused = True
            return
        self._open[request.request_id] = record
        self._engine.add(request)
