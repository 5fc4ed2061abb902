"""Proxima's policy: who starts in a step, who waits and why, and who gives way.

The most urgent goes first (`urgency`). It starts if its blocks are free now *and* the future peak of demand with it
fits into the pool (`demand`, by lengths from `forecast`, at a confidence kept by `calibration`). The first who may not
start gets a reservation from the time on at which it is forecast to fit; others may pass it as long as they fit beside
that reservation too, so that passing does not postpone it (EASY backfilling, Lifka 1995). Once somebody is overdue,
only others who are overdue pass it. When it has waited for twice the bound nobody does, and those who came later and
run give their blocks back if that makes it fit: that does not hang on a forecast. When the blocks run out although all
that was forecast, somebody yields (`yielding`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from proxima_engine.policy.calibration import Calibration
from proxima_engine.policy.demand import HORIZONS, Demand, Holding, PoolForecast, demand_of, demand_of_newcomer, reserve
from proxima_engine.policy.forecast import Curve, LengthForecast, group_of
from proxima_engine.policy.plan import Plan, Reason, YieldMode
from proxima_engine.policy.protocol import FinishedRequest
from proxima_engine.policy.urgency import Band, UrgencyQueue
from proxima_engine.policy.view import Changes, RunningRequest, StartedRequest, StepView, WaitingRequest
from proxima_engine.policy.yielding import Candidate, victims

EXACT_LOOKUPS_PER_STEP = 8
"""How many prefix lookups a plan may spend. The requests that need one are those at the front that do not fit."""
BACKFILLS_PER_STEP = 8
"""How many requests behind one that is held are looked at in a step."""
REFRESH_STEPS = 16
"""Steps after which curves and demand are made anew."""
TRIAL_STEPS = (32, 256)
"""Nearer than this nothing is uncertain, so there is nothing to learn; farther, there would be few trials."""
RESUME_S = 5.0
"""Stall bound: one who yielded and could not resume for so long needs no forecast any more, only its blocks."""


@dataclass(slots=True)
class _Runner:
    """What is known of one who runs, beside what the view says."""

    request: WaitingRequest
    shared_blocks: int
    is_late: bool


@dataclass(slots=True)
class _Draft:
    """A plan in the making."""

    free_blocks: int
    slots: int
    running: int
    lookups_left: int = EXACT_LOOKUPS_PER_STEP
    order: list[str] = field(default_factory=list)
    held: dict[str, Reason] = field(default_factory=dict)
    demand: Demand | None = None
    """Of all who run or were started in this draft; made when the first one asks."""
    reserved: Demand | None = None
    head_start_steps: float | None = None
    looked_past_head: int = 0
    last_band: Band = Band.LATE
    """Nobody of a later band starts any more."""
    backfilled: int = 0
    taken_blocks: int = 0
    yields: list[str] = field(default_factory=list)


class ProximaPolicy:
    """Keeps its own books of queue and pool, by the changes that each view names."""

    def __init__(self, max_wait_s: float) -> None:
        self._forecast = LengthForecast()
        self._max_wait_s = max_wait_s
        self._queue = UrgencyQueue(max_wait_s)
        self._not_ready: dict[str, WaitingRequest] = {}
        self._pool = PoolForecast()
        self._runners: dict[str, _Runner] = {}
        self._planned: dict[str, Demand] = {}
        """Demand of those whom the last plan started."""
        self._stood_still_since: dict[str, float] = {}
        self.calibration = Calibration()
        self._steps_to_refresh = 0
        self._unclaimed_blocks = 0
        """Used blocks that are nobody's own: a prefix that outlives the request that computed it."""
        self._last: Plan | None = None
        """The last plan, while it would come out the same."""

    def finished(self, request: FinishedRequest) -> None:
        group = group_of(request.prompt_tokens, request.cap_tokens)
        self._forecast.learn(group, request.output_tokens, request.cap_tokens)

    @property
    def forecasts_checked(self) -> int:
        return self.calibration.trials

    @property
    def forecasts_exceeded(self) -> int:
        return self.calibration.exceeded

    def plan(self, view: StepView) -> Plan:
        """Decide one step. Reads no clock: `view.now_s` is the time."""
        self._take_in(view)
        if view.missing_blocks:
            return self._yield(view)
        self._steps_to_refresh -= 1
        if self._steps_to_refresh <= 0:
            self._refresh(view)
        if self._queue.advance(view.now_s + view.step_s):
            self._last = None
        if self._last is None or view.denied is not None:
            plan = self._decide(view)
            # Blocks only become fewer until somebody comes, leaves or turns to another band.
            started_somebody = len(plan.order) > len(self._not_ready)
            self._last = None if started_somebody or view.denied is not None else plan
            return plan
        return self._last

    # -- books -----------------------------------------------------------------------------------------------------

    def _take_in(self, view: StepView) -> None:
        changes = view.changes
        if changes.restart:
            self._forget()
        if changes.restart or changes.arrived or changes.left or changes.started or changes.stopped:
            self._last = None
        yielded = self._leave(changes)
        for started in changes.started:
            self._start(started, view)
        for request in changes.arrived:
            self._enqueue(request, view)
        self._planned.clear()
        if not self._runners:
            self._unclaimed_blocks = 0
        self.calibration.step(self._runners.keys(), yielded)

    def _forget(self) -> None:
        self._queue.clear()
        self._not_ready.clear()
        self._runners.clear()
        self._stood_still_since.clear()
        self._pool.refresh({})
        self._steps_to_refresh = 0

    def _leave(self, changes: Changes) -> set[str]:
        for request_id in changes.left:
            self._queue.remove(request_id)
            self._not_ready.pop(request_id, None)
            self._stood_still_since.pop(request_id, None)
        for request_id in changes.stopped:
            self._runners.pop(request_id, None)
            self._pool.remove(request_id)
        stopped = set(changes.stopped)
        return {request.request_id for request in changes.arrived if request.request_id in stopped}

    def _start(self, started: StartedRequest, view: StepView) -> None:
        request = started.request
        # It was asked to yield before, or its first token cannot come before this step's end.
        is_late = request.output_tokens > 0 or view.now_s > request.deadline_s
        self._runners[request.request_id] = _Runner(request, started.shared_blocks, is_late)
        demand = self._planned.get(request.request_id)
        if demand is None or started.shared_blocks:
            own_blocks = max(0, self._own_blocks(request, view) - started.shared_blocks)
            demand = self._demand(request, own_blocks, view)
        self._pool.add(request.request_id, demand)

    @staticmethod
    def _own_blocks(request: WaitingRequest, view: StepView) -> int:
        return math.ceil((request.prompt_tokens + request.output_tokens) / view.block_size)

    def _enqueue(self, request: WaitingRequest, view: StepView) -> None:
        self._forecast.see_cap(request.cap_tokens)
        if request.not_ready is not None:
            self._queue.remove(request.request_id)
            self._not_ready[request.request_id] = request
            return
        self._not_ready.pop(request.request_id, None)
        answer_tokens = self._curve(request).expected_tokens(request.cap_tokens)
        block_steps = (request.prompt_tokens + answer_tokens / 2) / view.block_size * answer_tokens
        self._queue.add(request, block_steps, view.now_s)
        if request.output_tokens:
            self._stood_still_since.setdefault(request.request_id, view.now_s)

    def _curve(self, request: WaitingRequest) -> Curve:
        return self._forecast.curve(group_of(request.prompt_tokens, request.cap_tokens))

    def _demand(self, request: WaitingRequest, blocks: int, view: StepView) -> Demand:
        tokens = request.prompt_tokens + request.output_tokens
        curve = self._curve(request)
        if not request.output_tokens:
            return demand_of_newcomer(blocks, tokens, request.cap_tokens, curve, view.block_size)
        holding = Holding(blocks, tokens, request.output_tokens, request.cap_tokens, curve)
        return demand_of([holding], view.block_size)[0]

    def _refresh(self, view: StepView) -> None:
        self._steps_to_refresh = REFRESH_STEPS
        self._last = None
        running = [request for request in view.running if request.request_id in self._runners]
        tokens = np.array([request.output_tokens for request in running], dtype=np.int64)
        self._forecast.look(tokens)
        holdings = [self._holding(request, view) for request in running]
        demands = demand_of(holdings, view.block_size)
        by_id = {each.request_id: demand for each, demand in zip(running, demands, strict=True)}
        self._pool.refresh(by_id)
        own_now = sum(max(0, each.blocks - self._runners[each.request_id].shared_blocks) for each in running)
        self._unclaimed_blocks = max(0, view.used_blocks - own_now)
        if self.calibration.is_idle:
            self._begin_trial(by_id)

    def _holding(self, request: RunningRequest, view: StepView) -> Holding:
        runner = self._runners[request.request_id]
        blocks = max(request.blocks, self._own_blocks(runner.request, view)) - runner.shared_blocks
        # The token that came last is computed in the coming step, and has no place in a block yet.
        tokens = request.prompt_tokens + max(0, request.output_tokens - 1)
        curve = self._curve(runner.request)
        return Holding(max(0, blocks), tokens, request.output_tokens, request.cap_tokens, curve)

    def _begin_trial(self, demands: Mapping[str, Demand]) -> None:
        """For the horizon at which demand is highest: that is the one that decides."""
        total = self._pool.total
        nearest, farthest = TRIAL_STEPS
        uncertain = (nearest <= HORIZONS) & (farthest >= HORIZONS) & (total.variance > 0)
        if not uncertain.any():
            return
        upper = total.upper(self.calibration.z)
        index = int(np.where(uncertain, upper, -1.0).argmax())
        then = {request_id: float(demand.most[index]) for request_id, demand in demands.items()}
        self.calibration.begin(float(HORIZONS[index]), float(upper[index]), then)

    # -- decisions -------------------------------------------------------------------------------------------------

    def _decide(self, view: StepView) -> Plan:
        draft = _Draft(max(0, view.free_blocks - view.growth_blocks), view.slots, len(self._runners))
        self._show_not_ready(draft)
        for band, request in self._queue.in_order():
            stop = self._closed(band, draft)
            if stop is not None:
                draft.held[request.request_id] = stop
                break
            draft.looked_past_head += draft.reserved is not None
            reason = Reason.BLOCKS if request.request_id == view.denied else self._consider(band, request, draft, view)
            if reason is not None:
                draft.held[request.request_id] = reason
                self._hold(band, request, draft, view)
        return self._plan(draft, view)

    @staticmethod
    def _closed(band: Band, draft: _Draft) -> Reason | None:
        """Why nobody of this band or a later one is looked at any more in this step."""
        if draft.slots <= 0:
            return Reason.SLOTS
        if band > draft.last_band or draft.looked_past_head == BACKFILLS_PER_STEP:
            return Reason.BEHIND_HEAD
        return None

    def _hold(self, band: Band, request: WaitingRequest, draft: _Draft, view: StepView) -> None:
        """What it means for the others that this one does not start."""
        if request.request_id == view.denied:
            return
        if band is Band.OVERDUE:
            draft.last_band = band
            if self._bound_is_up(band, request, view):
                draft.looked_past_head = BACKFILLS_PER_STEP
        if draft.reserved is None:
            self._reserve(request, draft, view)

    def _show_not_ready(self, draft: _Draft) -> None:
        for request in self._not_ready.values():
            # vLLM looks at what it waits for only when it meets the request in its scan, and skips it at no cost.
            draft.order.append(request.request_id)
            if request.not_ready is not None:
                draft.held[request.request_id] = request.not_ready

    def _consider(self, band: Band, request: WaitingRequest, draft: _Draft, view: StepView) -> Reason | None:
        """Start a request in the draft, or say why not."""
        blocks, exact = request.blocks_at_most, False
        if blocks > draft.free_blocks:
            blocks, exact = self._exact(request, draft, view), True
        bound_is_up = self._bound_is_up(band, request, view)
        if blocks > draft.free_blocks and not (bound_is_up and self._give_back(request, blocks, draft, view)):
            return Reason.BLOCKS
        demand = self._demand(request, blocks, view)
        needs_forecast = draft.running > 0 and not bound_is_up and not self._stood_still_for_long(band, request, view)
        if needs_forecast and not self._peak_fits(demand, draft, view):
            if exact or draft.lookups_left == 0:
                return Reason.FORECAST
            fewer = self._exact(request, draft, view)
            if fewer == blocks:
                return Reason.FORECAST
            blocks, demand = fewer, self._demand(request, fewer, view)
            if not self._peak_fits(demand, draft, view):
                return Reason.FORECAST
        draft.order.append(request.request_id)
        draft.free_blocks -= blocks
        draft.taken_blocks += blocks
        draft.slots -= 1
        draft.running += 1
        draft.demand = self._demand_of_draft(draft) + demand
        self._planned[request.request_id] = demand
        draft.backfilled += draft.reserved is not None
        return None

    def _exact(self, request: WaitingRequest, draft: _Draft, view: StepView) -> int:
        if draft.lookups_left == 0:
            return request.blocks_at_most
        draft.lookups_left -= 1
        return view.exact_blocks(request.request_id)

    def _bound_is_up(self, band: Band, request: WaitingRequest, view: StepView) -> bool:
        return band is Band.OVERDUE and view.now_s - request.arrival_s >= 2 * self._max_wait_s

    @staticmethod
    def _give_back(request: WaitingRequest, blocks: int, draft: _Draft, view: StepView) -> bool:
        """Let those who passed a request yield to it, last started first; False, and nothing changed, if that would not
        be enough. Whoever came later and runs has passed it."""
        free = draft.free_blocks
        chosen: list[str] = []
        for candidate in sorted(view.running, key=lambda running: running.started_s, reverse=True):
            if free >= blocks:
                break
            if candidate.key > request.key and candidate.request_id not in draft.yields:
                chosen.append(candidate.request_id)
                free += candidate.blocks + candidate.growth_blocks
        if free < blocks:
            return False
        draft.taken_blocks -= free - draft.free_blocks
        draft.free_blocks = free
        draft.slots += len(chosen)
        draft.running -= len(chosen)
        draft.yields += chosen
        return True

    def _stood_still_for_long(self, band: Band, request: WaitingRequest, view: StepView) -> bool:
        since = self._stood_still_since.get(request.request_id, view.now_s)
        return band is Band.RESUMED and view.now_s - since >= RESUME_S

    def _demand_of_draft(self, draft: _Draft) -> Demand:
        return self._pool.total if draft.demand is None else draft.demand

    def _peak_fits(self, demand: Demand, draft: _Draft, view: StepView) -> bool:
        together = self._demand_of_draft(draft) + demand
        if draft.reserved is not None:
            together += draft.reserved
        return bool((together.upper(self.calibration.z) <= view.blocks_total - self._unclaimed_blocks).all())

    def _reserve(self, head: WaitingRequest, draft: _Draft, view: StepView) -> None:
        demand = self._demand(head, head.blocks_at_most, view)
        room = view.blocks_total - self._unclaimed_blocks
        index, draft.reserved = reserve(self._demand_of_draft(draft), demand, self.calibration.z, room)
        draft.head_start_steps = float(HORIZONS[index])

    def _plan(self, draft: _Draft, view: StepView) -> Plan:
        upper = self._demand_of_draft(draft).upper(self.calibration.z) + self._unclaimed_blocks
        now = view.used_blocks + view.growth_blocks + draft.taken_blocks
        head_start_s = None
        if draft.head_start_steps is not None and view.step_s:
            head_start_s = draft.head_start_steps * view.step_s
        return Plan(
            order=tuple(draft.order),
            held=draft.held,
            yields=tuple((request_id, YieldMode.RECOMPUTE) for request_id in draft.yields),
            backfilled=draft.backfilled,
            head_start_s=head_start_s,
            peak_blocks=max(now, min(view.blocks_total, math.ceil(upper.max()))),
        )

    def _yield(self, view: StepView) -> Plan:
        self._last = None
        chosen = victims(self._candidates(view.running), view.missing_blocks)
        return Plan(
            order=(),
            yields=tuple((victim.request_id, YieldMode.RECOMPUTE) for victim in chosen),
            peak_blocks=view.used_blocks,
        )

    def _candidates(self, running: Iterable[RunningRequest]) -> Iterable[Candidate]:
        for request in running:
            runner = self._runners.get(request.request_id)
            served = request.output_tokens - (runner.request.output_tokens if runner else 0)
            yield Candidate(request, runner is None or runner.is_late, served)
