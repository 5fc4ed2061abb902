"""Proxima's policy: who starts in a step, who waits and why, and who gives way.

The most urgent goes first (`urgency`). It starts if its blocks are free now *and* the future peak of demand with it
fits into the pool (`demand`, by lengths from `forecast`, at a confidence kept by `calibration`). The first who may not
start gets a reservation from the time on at which it is forecast to fit; others may pass it as long as they fit beside
that reservation too, so that passing does not postpone it (EASY backfilling, Lifka 1995). When it has waited for twice
the age bound nobody passes it, and those who came later and run give their blocks back if that makes it fit: that does
not hang on a forecast. Where vLLM schedules by priority,
those of a lower priority give slots and blocks back to one who needs them, and their forecast is not in its way. When
the blocks run out although all that was forecast, somebody yields (`yielding`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from proxima_config.hints import RequestClass
from proxima_engine.policy.alone import WaitingAlone
from proxima_engine.policy.books import Books
from proxima_engine.policy.calibration import Calibration
from proxima_engine.policy.demand import HORIZONS, Demand, reserve
from proxima_engine.policy.draft import Draft
from proxima_engine.policy.pace import token_budget
from proxima_engine.policy.plan import Plan, Reason
from proxima_engine.policy.protocol import FinishedRequest
from proxima_engine.policy.start_estimate import expected_start_steps, starts_in_turn_s
from proxima_engine.policy.urgency import Band
from proxima_engine.policy.view import RunningRequest, StepView, WaitingRequest
from proxima_engine.policy.yielding import COMPUTED_AGAIN, Turns, in_turn, is_near, likely_victims, terms_of, victims

BACKFILLS_PER_STEP = 8
"""How many requests behind one that is held are looked at in a step."""
LONG_SHARE = 0.5
"""Part of the pool that requests of class long may start with, all together, while others wait."""
LOOK_STEPS = 8
"""Steps after which one looks again who is likely to yield."""
REFRESH_STEPS = 16
"""Steps after which curves and demand are made anew, where few run."""
REFRESHED_PER_STEP = 8
"""Where many run it is more steps, so that a refresh, which looks at all of them, costs each step no more than it would
for so many; and what few of many do moves their sum by less."""
NOBODY = -1
"""Before all bands."""
RESUME_S = 5.0
"""Stall bound: one who yielded and could not resume for so long needs no forecast any more, only its blocks; after
twice that nobody passes it."""


class ProximaPolicy:
    """Decides; what it knows stands in its `books`."""

    def __init__(self, max_wait_s: float, stall_s: float = math.inf, max_stall_s: float = math.inf) -> None:
        """``stall_s``: longest gap between two tokens of an answer that is promised; ``max_stall_s``: that of who has
        yielded, where turns are taken."""
        self._stall_s = stall_s
        self._books = Books(max_wait_s, Turns(stall_s, max_stall_s))
        self._alone = WaitingAlone(max_wait_s, stall_s)
        self._planned: dict[str, Demand] = {}
        """Demand of those whom the last plan started."""
        self._gave_back = False
        """Whether those who yielded in the last plan did so for the sake of others."""
        self._steps_to_refresh = 0
        self._steps_to_look = 0
        self._likely_victims: tuple[str, ...] = ()
        self._terms = COMPUTED_AGAIN
        self._last: Plan | None = None
        """The last plan, while it would come out the same."""
        self._head: WaitingRequest | None = None
        """For whom the last plan has a reservation."""
        self._seen: StepView | None = None
        """What the last plan was made for."""

    @property
    def calibration(self) -> Calibration:
        return self._books.calibration

    @property
    def forecasts_checked(self) -> int:
        return self.calibration.trials

    @property
    def forecasts_exceeded(self) -> int:
        return self.calibration.exceeded

    def bound_s(self, request: WaitingRequest) -> float:
        """How long one who waits may do so until it is overdue."""
        return self._books.queue.bound_s(request.request_id)

    def finished(self, request: FinishedRequest) -> None:
        self._books.learn(request)

    def plan(self, view: StepView) -> Plan:
        """Decide one step. Reads no clock: `view.now_s` is the time."""
        plan = self._next_plan(view)
        # Where KV is lost, it is no help to know who yields next.
        likely = self._look_ahead(view) if view.swap_token_s is not None else ()
        return replace(plan, likely_victims=likely) if likely else plan

    def _look_ahead(self, view: StepView) -> tuple[str, ...]:
        self._steps_to_look -= 1
        if self._steps_to_look > 0:
            return self._likely_victims
        self._steps_to_look = LOOK_STEPS
        self._likely_victims = ()
        standing = self._books.standing > 0 and self._terms.turn_share > 0
        if standing or is_near(view, self._books.running):
            candidates = self._books.candidates(view.running)
            self._likely_victims = likely_victims(candidates, self._terms, somebody_stands_still=standing)
        return self._likely_victims

    def _next_plan(self, view: StepView) -> Plan:
        self._seen = view
        self._alone.plan_begins(view.now_s)
        self._terms = terms_of(view, self._terms)
        self._books.take_in(view, self._planned, self._terms, by_choice=self._gave_back or self._terms.turn_share > 0)
        self._planned, self._gave_back = {}, False
        if view.changes.restart:
            self._steps_to_refresh = 0
        if view.missing_blocks:
            self._last = None
            return self._yield(view)
        changed = self._let_time_pass(view) or not view.changes.is_empty or view.denied is not None
        if self._last is not None and not changed:
            return self._last
        plan = self._decide(view)
        # Blocks only become fewer until somebody comes, leaves or turns to another band.
        started_somebody = len(plan.order) > len(self._books.not_ready)
        somebodys_turn_comes = self._terms.turn_share and self._books.standing
        again = started_somebody or somebodys_turn_comes or view.denied is not None
        self._last = None if again else plan
        return plan

    def expected_starts_s(
        self, running: Sequence[RunningRequest], waiting: Sequence[WaitingRequest], finished_per_s: float
    ) -> Sequence[float | None]:
        seen = self._seen
        if seen is None:
            return [None] * len(waiting)
        first_s = 1 / finished_per_s if finished_per_s > 0 else None
        if self._head is not None and seen.step_s:
            first_s = self._head_start_steps(self._head, running, seen) * seen.step_s
        work = [self._books.peek_block_steps(request, seen) for request in waiting]
        return starts_in_turn_s(first_s, work, seen.used_blocks / seen.step_s if seen.step_s else 0.0)

    def _head_start_steps(self, head: WaitingRequest, running: Sequence[RunningRequest], seen: StepView) -> float:
        books = self._books
        return expected_start_steps(
            [books.peek_running(request, seen) for request in running],
            books.peek_waiting(head),
            self.calibration.z,
            self._terms.overcommit * books.room_blocks(seen),
            seen.block_size,
            look_in=self._steps_to_refresh,
            look_every=self._refresh_every(),
        )

    def _let_time_pass(self, view: StepView) -> bool:
        """Whether the same queue and pool may be judged differently now."""
        turned = self._books.queue.advance(view.now_s + view.step_s)
        self._steps_to_refresh -= 1
        if self._steps_to_refresh > 0:
            return turned
        self._steps_to_refresh = self._refresh_every()
        self._books.refresh(view)
        return True

    def _refresh_every(self) -> int:
        """Steps from one refresh to the next."""
        return max(REFRESH_STEPS, self._books.running // REFRESHED_PER_STEP)

    def _decide(self, view: StepView) -> Plan:
        books = self._books
        self._head = None
        free_blocks = max(0, view.free_blocks - view.growth_blocks)
        running_demand = books.running_demand(view)
        draft = Draft(books.long_blocks, set(view.adapters), free_blocks, view.slots, books.running, running_demand)
        self._show_not_ready(draft)
        for band, request in books.queue.in_order():
            stop = self._closed(band, request, draft)
            if stop is not None:
                draft.held[request.request_id] = stop
                break
            draft.looked_past_head += draft.reserved is not None
            reason = self._kept_out(band, request, draft, view)
            if reason is not None:
                # Others' blocks are not in its way, so it takes no reservation that would hold them back.
                draft.held[request.request_id] = reason
                continue
            reason = Reason.BLOCKS if request.request_id == view.denied else self._consider(band, request, draft, view)
            if reason is not None:
                draft.held[request.request_id] = reason
                self._hold(band, request, draft, view)
        return self._plan(draft, view)

    def _closed(self, band: Band, request: WaitingRequest, draft: Draft) -> Reason | None:
        """Why this request and those after it are not looked at any more in this step."""
        if draft.slots <= 0 and not self._books.runs_below(request):
            return Reason.SLOTS
        if band > draft.last_band or draft.looked_past_head == BACKFILLS_PER_STEP:
            return Reason.BEHIND_HEAD
        return None

    def _kept_out(self, band: Band, request: WaitingRequest, draft: Draft, view: StepView) -> Reason | None:
        """Why one does not start whatever blocks there are."""
        if request.adapter and self._adapter_waits(band, request, draft, view):
            return Reason.LORA
        if band > Band.OVERDUE and self._class_is_full(request, draft, view):
            return Reason.CLASS_LIMIT
        return None

    def _adapter_waits(self, band: Band, request: WaitingRequest, draft: Draft, view: StepView) -> bool:
        if request.adapter in draft.adapters or len(draft.adapters) < view.adapter_slots:
            return band > draft.last_adapter_band
        # Those who keep an adapter in use could follow each other for ever. Who has none takes nobody's slot.
        if self._bound_is_up(band, request, view):
            draft.last_adapter_band = NOBODY
        elif band is Band.OVERDUE or self._stood_still_for_long(band, request, view):
            draft.last_adapter_band = min(draft.last_adapter_band, band)
        return True

    def _class_is_full(self, request: WaitingRequest, draft: Draft, view: StepView) -> bool:
        if request.request_class is not RequestClass.LONG or not draft.long_blocks:
            return False
        blocks = draft.long_blocks + self._books.own_blocks(request, view)
        return blocks > LONG_SHARE * view.blocks_total and self._books.queue.others_than_long > 0

    def _hold(self, band: Band, request: WaitingRequest, draft: Draft, view: StepView) -> None:
        """What it means for the others that this one does not start."""
        self._alone.somebody_is_held(view.now_s, len(self._books.queue))
        if request.request_id == view.denied:
            return
        if self._bound_is_up(band, request, view) or self._must_resume(band, request, view):
            draft.looked_past_head = BACKFILLS_PER_STEP
        elif band is Band.RESUMED and self._terms.turn_share:
            draft.last_band = band
        if draft.reserved is None:
            self._reserve(request, draft, view)

    def _show_not_ready(self, draft: Draft) -> None:
        for request in self._books.not_ready.values():
            # vLLM looks at what it waits for only when it meets the request in its scan, and skips it at no cost.
            draft.order.append(request.request_id)
            if request.not_ready is not None:
                draft.held[request.request_id] = request.not_ready

    def _consider(self, band: Band, request: WaitingRequest, draft: Draft, view: StepView) -> Reason | None:
        """Start a request in the draft, or say why not."""
        blocks, exact = request.blocks_at_most, False
        if blocks > draft.free_blocks:
            blocks, exact = self._exact(request, draft, view), True
        before = draft.room()
        if blocks > draft.free_blocks or draft.slots <= 0:
            lacks = Reason.BLOCKS if blocks > draft.free_blocks else Reason.SLOTS
            if not self._make_room(band, request, blocks, draft, view):
                return lacks
        demand: Demand | None
        if not draft.running or self._needs_no_forecast(band, request, view):
            demand = self._books.demand(request, blocks, view)
        else:
            blocks, demand = self._fitting(request, blocks, draft, view, exact=exact)
        if demand is None:
            # Nobody yields to one who then does not start.
            draft.go_back_to(before)
            return Reason.FORECAST
        draft.start(request, blocks, demand)
        if request.request_class is RequestClass.LONG:
            draft.long_blocks += self._books.own_blocks(request, view)
        self._planned[request.request_id] = demand
        return None

    def _needs_no_forecast(self, band: Band, request: WaitingRequest, view: StepView) -> bool:
        # Where the bound is 0 it is up for all of them from the beginning, and nobody has passed anybody.
        if self._bound_is_up(band, request, view) and self.bound_s(request) > 0:
            return True
        return self._stood_still_for_long(band, request, view)

    def _fitting(
        self, request: WaitingRequest, blocks: int, draft: Draft, view: StepView, *, exact: bool
    ) -> tuple[int, Demand | None]:
        """Blocks to start with and the demand by which it fits beside the others, if it does. ``exact``: ``blocks`` is
        what the KV manager says, and not the most that it can be."""
        demand = self._books.demand(request, blocks, view)
        if self._peak_fits(request, demand, draft, view):
            return blocks, demand
        fewer = blocks if exact else self._exact(request, draft, view)
        if fewer == blocks:
            return blocks, None
        demand = self._books.demand(request, fewer, view)
        return fewer, demand if self._peak_fits(request, demand, draft, view) else None

    def _exact(self, request: WaitingRequest, draft: Draft, view: StepView) -> int:
        if draft.lookups_left == 0:
            return request.blocks_at_most
        draft.lookups_left -= 1
        return view.exact_blocks(request.request_id)

    def _bound_is_up(self, band: Band, request: WaitingRequest, view: StepView) -> bool:
        return band is Band.OVERDUE and view.now_s - request.arrival_s >= 2 * self.bound_s(request)

    def _make_room(self, band: Band, request: WaitingRequest, blocks: int, draft: Draft, view: StepView) -> bool:
        """Let others yield to a request that is above them or whose time has come; if not, or if that is no help,
        nothing changes."""
        if self._books.runs_below(request):
            below = [each for each in view.running if each.priority > request.priority]
            below.sort(key=lambda each: (each.priority, each.started_s), reverse=True)
            if draft.give_back(below, blocks, view.freed_blocks):
                return True
        if self._bound_is_up(band, request, view):
            # Whoever came later and runs has passed it. Last started first.
            passed = [each for each in view.running if each.key > request.key]
            passed.sort(key=lambda each: each.started_s, reverse=True)
            return draft.give_back(passed, blocks, view.freed_blocks)
        if band is Band.RESUMED and self._its_turn(request, view):
            # Nobody takes the blocks of one of a higher priority.
            others = (each for each in view.running if each.priority >= request.priority)
            return draft.give_back(in_turn(self._books.candidates(others), self._terms), blocks, view.freed_blocks)
        return False

    def _its_turn(self, request: WaitingRequest, view: StepView) -> bool:
        """Whether one who yielded has stood still for long enough: when all who do take turns, copies take no more than
        their share of the time."""
        if not self._terms.turn_share:
            return False
        # Most of what yields again is on the host still: the way back is what costs.
        copy_s = (view.swap_token_s or 0.0) / 2 * (request.prompt_tokens + request.output_tokens)
        turn_s = max(self._books.turn_s(request), self._books.standing * copy_s / self._terms.turn_share)
        return self._books.stood_still_s(request, view.now_s) >= turn_s

    def _stood_still_for_long(self, band: Band, request: WaitingRequest, view: StepView) -> bool:
        if band is not Band.RESUMED:
            return False
        return self._terms.turn_share > 0 or self._books.stood_still_s(request, view.now_s) >= RESUME_S

    def _must_resume(self, band: Band, request: WaitingRequest, view: StepView) -> bool:
        """Whether nobody passes one who yielded, whatever its reservation says: that is a forecast, and may be put off
        again and again. Where turns are taken it need not wait for that."""
        if band is not Band.RESUMED or self._terms.turn_share > 0:
            return False
        return self._books.stood_still_s(request, view.now_s) >= 2 * RESUME_S

    def _peak_fits(self, request: WaitingRequest, demand: Demand, draft: Draft, view: StepView) -> bool:
        room, z = self._terms.overcommit * self._books.room_blocks(view), self.calibration.z
        yields_first = self._books.runs_below(request)
        reserved = () if draft.reserved is None else (draft.reserved,)
        alone = not self._terms.turn_share and self._alone.is_so(view.now_s, len(self._books.queue))
        if not (yields_first or alone) and draft.demand.upper_at(draft.tight, z, (demand, *reserved)) > room:
            return False
        together = draft.demand + demand
        if yields_first:
            together -= self._books.demand_below(request)
        for each in reserved:
            together += each
        too_much = together.upper(z) > room
        horizon = int(too_much.argmax())
        if not too_much[horizon]:
            return True
        draft.tight = horizon
        return alone and self._alone.overflow_is_brief(together, room, z, view.step_s)

    def _reserve(self, head: WaitingRequest, draft: Draft, view: StepView) -> None:
        self._head = head
        demand = self._books.demand(head, head.blocks_at_most, view)
        room = self._books.room_blocks(view)
        index, draft.reserved = reserve(draft.demand, demand, self.calibration.z, room)
        draft.head_start_steps = float(HORIZONS[index])

    def _plan(self, draft: Draft, view: StepView) -> Plan:
        self._gave_back = bool(draft.yields)
        peak = math.ceil(self._books.peak_blocks(draft.demand))
        now = view.used_blocks + view.growth_blocks + draft.taken_blocks
        head_start_s = None
        if draft.head_start_steps is not None and view.step_s:
            head_start_s = draft.head_start_steps * view.step_s
        return Plan(
            order=tuple(draft.order),
            held=draft.held,
            yields=tuple((request_id, self._terms.mode) for request_id in draft.yields),
            backfilled=draft.backfilled,
            head_start_s=head_start_s,
            token_budget=token_budget(view.step_time, self._stall_s, self._books.running),
            peak_blocks=max(now, min(view.blocks_total, peak)),
        )

    def _yield(self, view: StepView) -> Plan:
        candidates = self._books.candidates(view.running)
        chosen = victims(candidates, view.missing_blocks, view.freed_blocks, self._terms)
        return Plan(
            order=(),
            yields=tuple((victim.request_id, self._terms.mode) for victim in chosen),
            peak_blocks=view.used_blocks,
        )
