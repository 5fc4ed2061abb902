"""What the policy remembers from step to step: who waits and runs, what those who run will need, and how far that is
to be believed.

Kept by the changes that each view names; a view that says `restart` makes it forget all but what it has learned.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from proxima_config.hints import RequestClass
from proxima_engine.policy.calibration import Calibration
from proxima_engine.policy.demand import (
    HORIZONS,
    Demand,
    Holding,
    PoolForecast,
    demand_of,
    demand_of_newcomer,
    demand_parts,
)
from proxima_engine.policy.forecast import Curve, Floats, Group, LengthForecast, group_of
from proxima_engine.policy.protocol import FinishedRequest
from proxima_engine.policy.urgency import UrgencyQueue
from proxima_engine.policy.view import Changes, RunningRequest, StartedRequest, StepView, WaitingRequest
from proxima_engine.policy.yielding import NO_TURNS, Candidate, Terms, Turns

TRIAL_STEPS = (32, 256)
"""Nearer than this nothing is uncertain, so there is nothing to learn; farther, there would be few trials."""


@dataclass(frozen=True, slots=True)
class _Runner:
    """What is known of one who runs, beside what the view says."""

    request: WaitingRequest
    """As it waited, at the time it started."""
    group: Group
    own_blocks: int
    """That hold all of it as it waited."""
    shared_blocks: int
    is_late: bool


@dataclass(frozen=True, slots=True)
class _Standing:
    """One who has yielded and waits."""

    since_s: float
    is_late: bool
    """It had missed its target before."""


class Books:
    def __init__(self, max_wait_s: float, turns: Turns = NO_TURNS) -> None:
        self.queue = UrgencyQueue(max_wait_s)
        self.not_ready: dict[str, WaitingRequest] = {}
        """They wait for something other than blocks."""
        self.calibration = Calibration()
        self._forecast = LengthForecast()
        self._pool = PoolForecast()
        self._asked: dict[tuple[str, int], tuple[WaitingRequest, Demand]] = {}
        self._runners: dict[str, _Runner] = {}
        self._priorities: Counter[int] = Counter()
        """How many run by priority."""
        self._long_blocks: dict[str, int] = {}
        self._turns = turns
        self._standing: dict[str, _Standing] = {}
        self._fluent: set[str] = set()
        """Of those who have just stopped, who had not missed their target."""
        self._unclaimed_blocks = 0
        """Used blocks that are nobody's own: a prefix that outlives the request that computed it."""
        self._peeked: dict[Group, Curve] = {}
        """Curves that only those who look have asked for."""

    @property
    def running(self) -> int:
        return len(self._runners)

    def running_demand(self, view: StepView) -> Demand:
        return self._pool.now(view.block_size)

    def runs_below(self, request: WaitingRequest) -> bool:
        """Whether anybody of a lower priority runs."""
        return bool(self._priorities) and max(self._priorities) > request.priority

    def demand_below(self, request: WaitingRequest) -> Demand:
        """Of those of a lower priority who run."""
        below = (name for name, runner in self._runners.items() if runner.request.priority > request.priority)
        return self._pool.part(below)

    def peak_blocks(self, demand: Demand) -> float:
        """Highest number of blocks in use with that demand, at the confidence of now."""
        return float(demand.upper(self.calibration.z).max()) + self._unclaimed_blocks

    def room_blocks(self, view: StepView) -> int:
        """Blocks that demand may come to."""
        return view.blocks_total - self._unclaimed_blocks

    @property
    def long_blocks(self) -> int:
        """Blocks that those of class long who run have started with."""
        return sum(self._long_blocks.values())

    @property
    def standing(self) -> int:
        """How many have yielded and wait."""
        return len(self._standing)

    def stood_still_s(self, request: WaitingRequest, now_s: float) -> float:
        """How long ago it yielded; 0 for one that did not."""
        standing = self._standing.get(request.request_id)
        return 0.0 if standing is None else now_s - standing.since_s

    def turn_s(self, request: WaitingRequest) -> float:
        """How long one who yielded stands still until it takes its turn."""
        standing = self._standing.get(request.request_id)
        return self._turns.after_s(is_late=standing is None or standing.is_late)

    def learn(self, request: FinishedRequest) -> None:
        self._forecast.learn(_group(request), request.output_tokens, request.cap_tokens)

    def demand(self, request: WaitingRequest, blocks: int, view: StepView) -> Demand:
        """Of one who waits, if it starts now with so many blocks of its own; kept until the next refresh, because the
        same few are looked at in every step."""
        key = request.request_id, blocks
        known = self._asked.get(key)
        if known is None or known[0] is not request:
            known = self._asked[key] = request, self._demand(request, blocks, view)
        return known[1]

    def _demand(self, request: WaitingRequest, blocks: int, view: StepView) -> Demand:
        tokens = request.prompt_tokens + request.output_tokens
        curve = self._curve(request)
        if not request.output_tokens:
            return demand_of_newcomer(blocks, tokens, request.cap_tokens, curve, view.block_size)
        holding = Holding(blocks, tokens, request.output_tokens, request.cap_tokens, curve)
        return demand_of([holding], view.block_size)[0]

    def candidates(self, running: Iterable[RunningRequest]) -> list[Candidate]:
        """Those who run, with what they would lose by yielding."""
        found: list[Candidate] = []
        for request in running:
            is_late, served_tokens = True, request.output_tokens
            if (runner := self._runners.get(request.request_id)) is not None:
                is_late, served_tokens = runner.is_late, served_tokens - runner.request.output_tokens
            found.append(Candidate(request, is_late, served_tokens))
        return found

    def take_in(self, view: StepView, planned: Mapping[str, Demand], terms: Terms, *, by_choice: bool) -> None:
        """What has happened since the last plan. ``planned``: demand of those whom that plan started; ``by_choice``:
        who yielded did so for the sake of others, and not because the blocks ran out."""
        changes = view.changes
        if changes.restart:
            self._forget()
        self._pool.step()
        for started in changes.started:
            self.queue.start(started.request.request_id)
        stood = {name: self._standing[name] for name in changes.left if name in self._standing}
        yielded = self._leave(changes)
        for started in changes.started:
            resumed = stood.get(started.request.request_id) if terms.turn_share else None
            self._start(started, planned, view, resumed)
        for request in changes.arrived:
            self._enqueue(request, view, terms)
        if not self._runners:
            self._unclaimed_blocks = 0
        self.calibration.step(self._runners.keys(), yielded, by_choice=by_choice)

    def refresh(self, view: StepView) -> None:
        """Make curves and demand anew, by how far those who run have come."""
        request_ids: list[str] = []
        held: list[int] = []
        row_of: dict[Group, int] = {}
        rows: list[int] = []
        own_now = 0
        # Hundreds run, so this is one pass, and each is asked for all its fields at once.
        for request_id, _, blocks, _, _, prompt_tokens, output_tokens, cap_tokens in view.running:
            runner = self._runners.get(request_id)
            if runner is None:
                continue
            own_now += max(0, blocks - runner.shared_blocks)
            own_blocks = max(0, max(blocks, runner.own_blocks) - runner.shared_blocks)
            # The token that came last is computed in the coming step, and has no place in a block yet.
            tokens = prompt_tokens + max(0, output_tokens - 1)
            request_ids.append(request_id)
            held += own_blocks, tokens, output_tokens, cap_tokens
            rows.append(row_of.setdefault(runner.group, len(row_of)))
        fields = np.array(held, dtype=np.float64).reshape(-1, 4).T
        self._forecast.look(fields[2].astype(np.int64))
        curves = [self._forecast.curve(group) for group in row_of]
        parts = demand_parts(fields, curves, np.array(rows, dtype=np.int64), view.block_size)
        self._pool.refresh(request_ids, parts)
        self._asked.clear()
        self._peeked.clear()
        self._unclaimed_blocks = max(0, view.used_blocks - own_now)
        if self.calibration.is_idle:
            self._begin_trial(request_ids, parts)

    def _forget(self) -> None:
        self.queue.clear()
        self.not_ready.clear()
        self._runners.clear()
        self._priorities.clear()
        self._long_blocks.clear()
        self._asked.clear()
        self._standing.clear()
        self._pool.clear()

    def _leave(self, changes: Changes) -> set[str]:
        for request_id in changes.left:
            self.queue.remove(request_id)
            self.not_ready.pop(request_id, None)
            self._standing.pop(request_id, None)
        ran = (self._runners.get(request_id) for request_id in changes.stopped)
        self._fluent = {runner.request.request_id for runner in ran if runner is not None and not runner.is_late}
        for request_id in changes.stopped:
            self._stop(request_id)
            self._long_blocks.pop(request_id, None)
            self._pool.remove(request_id)
        stopped = set(changes.stopped)
        return {request.request_id for request in changes.arrived if request.request_id in stopped}

    def _start(
        self, started: StartedRequest, planned: Mapping[str, Demand], view: StepView, resumed: _Standing | None
    ) -> None:
        """``resumed``: since when it stood still, where those who do take turns, which may bring it back in time."""
        request = started.request
        # It was asked to yield before, or its first token cannot come before this step's end.
        is_late = request.output_tokens > 0 or view.now_s > request.deadline_s
        if resumed is not None:
            is_late = resumed.is_late or view.now_s - resumed.since_s > self._turns.stall_s
        self._stop(request.request_id)
        runner = _Runner(request, _group(request), self.own_blocks(request, view), started.shared_blocks, is_late)
        self._runners[request.request_id] = runner
        self._priorities[request.priority] += 1
        if request.request_class is RequestClass.LONG:
            self._long_blocks[request.request_id] = runner.own_blocks
        demand = planned.get(request.request_id)
        if demand is None or started.shared_blocks:
            own_blocks = max(0, runner.own_blocks - started.shared_blocks)
            demand = self.demand(request, own_blocks, view)
        self._pool.add(request.request_id, demand)

    def _stop(self, request_id: str) -> None:
        runner = self._runners.pop(request_id, None)
        if runner is not None:
            priority = runner.request.priority
            self._priorities[priority] -= 1
            if not self._priorities[priority]:
                del self._priorities[priority]

    @staticmethod
    def own_blocks(request: WaitingRequest, view: StepView) -> int:
        """Blocks that hold all of it as it waits."""
        return math.ceil((request.prompt_tokens + request.output_tokens) / view.block_size)

    def _enqueue(self, request: WaitingRequest, view: StepView, terms: Terms) -> None:
        self._forecast.see_cap(request.cap_tokens)
        if request.not_ready is not None:
            self.queue.remove(request.request_id)
            self.not_ready[request.request_id] = request
            return
        self.not_ready.pop(request.request_id, None)
        answer_tokens = self._curve(request).expected_tokens(request.cap_tokens)
        block_steps = _block_steps(request, answer_tokens, view)
        start_by_s = request.arrival_s + request.total_s - answer_tokens * view.step_s
        resumes_after_s = 0.0
        if request.output_tokens:
            yielded = _Standing(view.now_s, is_late=request.request_id not in self._fluent)
            standing = self._standing.setdefault(request.request_id, yielded)
            if terms.turn_share:
                resumes_after_s = standing.since_s + self._turns.after_s(is_late=standing.is_late)
        pool_s = block_steps * view.step_s / max(1, view.blocks_total)
        self.queue.add(request, block_steps, view.now_s, start_by_s, pool_s=pool_s, resumes_after_s=resumes_after_s)
        if not view.changes.restart:
            self.queue.queue_up(request.request_id, block_steps)

    def _curve(self, request: WaitingRequest) -> Curve:
        return self._forecast.curve(_group(request))

    def _begin_trial(self, request_ids: Sequence[str], parts: Floats) -> None:
        """For the horizon at which demand is highest: that is the one that decides."""
        total = self._pool.total
        nearest, farthest = TRIAL_STEPS
        uncertain = (nearest <= HORIZONS) & (farthest >= HORIZONS) & (total.variance > 0)
        if not uncertain.any():
            return
        upper = total.upper(self.calibration.z)
        index = int(np.where(uncertain, upper, -1.0).argmax())
        then = dict(zip(request_ids, parts[:, 2, index].tolist(), strict=True))
        self.calibration.begin(float(HORIZONS[index]), float(upper[index]), then)

    # -- for those who look: what plans are made of does not change by it ------------------------------------------

    def peek_running(self, request: RunningRequest, view: StepView) -> Holding:
        """Of one who runs, or was started by the last plan."""
        runner = self._runners.get(request.request_id)
        tokens = request.prompt_tokens + max(0, request.output_tokens - 1)
        shared = 0 if runner is None else runner.shared_blocks
        blocks = max(request.blocks, math.ceil(tokens / view.block_size)) - shared
        request_class = RequestClass.DEFAULT if runner is None else runner.request.request_class
        curve = self._peek(group_of(request.prompt_tokens, request.cap_tokens, request_class))
        return Holding(max(0, blocks), tokens, request.output_tokens, request.cap_tokens, curve)

    def peek_waiting(self, request: WaitingRequest) -> Holding:
        """Of one who waits, if it starts without a cached prefix."""
        tokens = request.prompt_tokens + request.output_tokens
        curve = self._peek(_group(request))
        return Holding(request.blocks_at_most, tokens, request.output_tokens, request.cap_tokens, curve)

    def peek_block_steps(self, request: WaitingRequest, view: StepView) -> float:
        """What one who waits is expected to take of the pool: blocks times steps for which it holds them."""
        curve = self._peek(_group(request))
        return _block_steps(request, curve.expected_tokens(request.cap_tokens), view)

    def _peek(self, group: Group) -> Curve:
        found = self._peeked.get(group)
        if found is None:
            found = self._peeked[group] = self._forecast.peek(group)
        return found


def _block_steps(request: WaitingRequest, answer_tokens: float, view: StepView) -> float:
    return (request.prompt_tokens + answer_tokens / 2) / view.block_size * answer_tokens


def _group(request: WaitingRequest | FinishedRequest) -> Group:
    return group_of(request.prompt_tokens, request.cap_tokens, request.request_class)
