"""A pool of blocks that a policy plans for, step by step and without an engine; every plan is checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from step_views import BLOCK_SIZE, STEP_S, view

from proxima_engine.policy.admission import ProximaPolicy
from proxima_engine.policy.demand import blocks_for
from proxima_engine.policy.plan import Plan
from proxima_engine.policy.protocol import FinishedRequest
from proxima_engine.policy.view import Changes, RunningRequest, StartedRequest, StepView, WaitingRequest

MAX_WAIT_S = 10.0
CAP = 4000
TTFT_S = 0.3
ROUNDING_S = 1e-9


def knowing(
    *lengths: int, max_wait_s: float = MAX_WAIT_S, stall_s: float = math.inf, times: int = 400, cap: int = CAP
) -> ProximaPolicy:
    """A policy that has seen answers of these lengths, and so expects more of them."""
    policy = ProximaPolicy(max_wait_s, stall_s)
    for number in range(times):
        for length in lengths:
            policy.finished(FinishedRequest(f"done{number}", 100, length, cap))
    return policy


def check_plan(plan: Plan, seen: StepView) -> None:
    """It names only those who wait or run, each once, and promises no more than there is."""
    waits = {request.request_id: request for request in seen.waiting}
    ready = [waits[name] for name in plan.order if waits[name].not_ready is None]
    assert len(set(plan.order)) == len(plan.order)
    assert set(plan.order) | set(plan.held) <= set(waits)
    assert not {request.request_id for request in ready} & set(plan.held)
    assert len(ready) <= max(0, seen.slots) + len(plan.yields)
    needed = sum(seen.exact_blocks(request.request_id) for request in ready)
    yielding = {name for name, _ in plan.yields}
    given = sum(each.blocks + each.growth_blocks for each in seen.running if each.request_id in yielding)
    assert needed <= max(0, seen.free_blocks - seen.growth_blocks) + given
    assert 0 <= plan.backfilled <= len(ready)
    if plan.yields:
        assert plan.order or len(plan.yields) < len(seen.running)
        assert {name for name, _ in plan.yields} <= {request.request_id for request in seen.running}


def check_age_bound(plan: Plan, seen: StepView, bound_s: Callable[[WaitingRequest], float]) -> None:
    """One who is overdue is passed by those who are not only beside its reservation, and by nobody at all after twice
    its bound."""
    first_tokens = [request for request in seen.waiting if request.not_ready is None and not request.output_tokens]
    start = [request for request in first_tokens if request.request_id in plan.order]
    for passed in first_tokens:
        age_s = seen.now_s - passed.arrival_s
        if passed.request_id in plan.order or age_s < bound_s(passed):
            continue
        pass_it = [request for request in start if request.key > passed.key]
        assert not pass_it or age_s < 2 * bound_s(passed)
        # One whose bound is reached by the end of the step counts as overdue.
        end_s = seen.now_s + seen.step_s + ROUNDING_S
        not_overdue = [request for request in pass_it if end_s - request.arrival_s < bound_s(request)]
        assert len(not_overdue) <= plan.backfilled


@dataclass(slots=True)
class Job:
    """A request with the length that its answer will have, which no policy is told."""

    name: str
    arrival_step: int
    prompt_tokens: int
    answer_tokens: int
    cap_tokens: int
    output_tokens: int = 0
    started_s: float = 0.0

    @property
    def key(self) -> tuple[int, float, str]:
        return 0, self.arrival_step * STEP_S, self.name

    def as_waiting(self) -> WaitingRequest:
        return WaitingRequest(
            request_id=self.name,
            key=self.key,
            blocks_at_most=blocks_for(self.prompt_tokens + self.output_tokens, BLOCK_SIZE),
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            cap_tokens=self.cap_tokens,
            ttft_s=TTFT_S,
        )

    def as_running(self) -> RunningRequest:
        # The token that came last has no place in a block yet.
        tokens = self.prompt_tokens + self.output_tokens
        blocks = blocks_for(tokens - 1, BLOCK_SIZE)
        return RunningRequest(
            request_id=self.name,
            key=self.key,
            blocks=blocks,
            growth_blocks=blocks_for(tokens, BLOCK_SIZE) - blocks,
            started_s=self.started_s,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            cap_tokens=self.cap_tokens,
        )


@dataclass(slots=True)
class SimulatedPool:
    policy: ProximaPolicy
    blocks: int
    slots: int
    number: int = 0
    """Of the step to come."""
    waiting: dict[str, Job] = field(default_factory=dict)
    running: dict[str, Job] = field(default_factory=dict)
    told: dict[str, WaitingRequest] = field(default_factory=dict)
    """As each one waited when it was last told."""
    told_running: set[str] = field(default_factory=set)
    touched: set[str] = field(default_factory=set)
    """Those who came to wait or ceased to since the last plan."""
    yields: int = 0

    def step(self, arrivals: Iterable[Job] = (), aborts: Collection[str] = (), *, restart: bool = False) -> Plan | None:
        """None where nobody is there."""
        for job in arrivals:
            self.waiting[job.name] = job
            self.touched.add(job.name)
        for name in aborts:
            self.running.pop(name, None)
            if self.waiting.pop(name, None):
                self.touched.add(name)
        plan = None
        if self.waiting or self.running:
            seen = self._view(restart=restart)
            plan = self.policy.plan(seen)
            check_plan(plan, seen)
            check_age_bound(plan, seen, self.policy.bound_s)
            assert self.running or plan.order, "the pool idles although somebody waits"
            self._carry_out(plan)
        self.number += 1
        return plan

    def _view(self, *, restart: bool) -> StepView:
        if restart:
            self.touched.update(self.waiting)
            self.told_running.clear()
        busy = tuple(job.as_running() for job in self.running.values())
        queue = sorted((job.as_waiting() for job in self.waiting.values()), key=lambda request: request.key)
        changes = self._changes(queue, restart=restart)
        used = sum(request.blocks for request in busy)
        return view(
            *queue,
            free=self.blocks - used,
            now_s=self.number * STEP_S,
            slots=self.slots - len(busy),
            busy=busy,
            changes=changes,
        )

    def _changes(self, queue: list[WaitingRequest], *, restart: bool) -> Changes:
        left = [name for name in sorted(self.touched) if name not in self.waiting]
        arrived = [request for request in queue if request.request_id in self.touched]
        stopped = [name for name in sorted(self.told_running) if name not in self.running]
        new = [name for name in self.running if name not in self.told_running]
        started = [StartedRequest(self.told[name], shared_blocks=0) for name in new]
        self.told.update((request.request_id, request) for request in arrived)
        self.told_running = set(self.running)
        self.touched.clear()
        return Changes(restart, arrived, left, started, stopped)

    def _carry_out(self, plan: Plan) -> None:
        for name, _ in plan.yields:
            self.waiting[name] = self.running.pop(name)
            self.touched.add(name)
            self.yields += 1
        for name in plan.order:
            job = self.running[name] = self.waiting.pop(name)
            job.started_s = self.number * STEP_S
            self.touched.add(name)
        for name, job in list(self.running.items()):
            job.output_tokens += 1
            if job.output_tokens == job.answer_tokens:
                del self.running[name]
                self.policy.finished(FinishedRequest(name, job.prompt_tokens, job.answer_tokens, job.cap_tokens))
        held = sum(job.as_running().blocks for job in self.running.values())
        assert held <= self.blocks, "more blocks are held than there are"
