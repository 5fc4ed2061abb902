"""The just-in-time ready set: start whatever has its blocks now, and let nobody wait for ever.

vLLM stops looking at its queue at the first request whose blocks do not fit. Here such a request is passed by
later ones that do fit. Two rules bound what that may cost it:

* *Age bound.* Once a request has been passed for `max_wait_s` seconds, nobody passes it any more.
* *Restitution.* If it still does not fit then, those who passed it and still run yield, last started first, as long
  as that makes it fit. So passing delays no request by more than `max_wait_s`; whatever else it waits for, it would
  have waited for in arrival order too.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from proxima_engine.policy.demand import tokens_until_free
from proxima_engine.policy.plan import Plan, Reason, YieldMode
from proxima_engine.policy.view import RunningRequest, SortKey, StepView, WaitingRequest

EXACT_LOOKUPS_PER_STEP = 8
"""How many prefix lookups a plan may spend. The requests that need one are those at the front that do not fit."""


@dataclass(slots=True)
class _Draft:
    """A plan in the making."""

    free_blocks: int
    slots: int
    lookups_left: int
    order: list[str] = field(default_factory=list)
    held: dict[str, Reason] = field(default_factory=dict)
    yields: list[tuple[str, YieldMode]] = field(default_factory=list)
    passed: list[WaitingRequest] = field(default_factory=list)
    closed: bool = False
    """A held request may be passed no more: nobody younger starts."""
    backfilled: int = 0
    last_started: SortKey | None = None
    taken_blocks: int = 0

    def start(self, request: WaitingRequest, blocks: int) -> None:
        self.order.append(request.request_id)
        self.free_blocks -= blocks
        self.taken_blocks += blocks
        self.slots -= 1
        self.last_started = request.key
        self.backfilled += bool(self.passed)


class ReadySetPolicy:
    """Arrival order with backfilling; keeps only the times at which waiting requests were first passed."""

    def __init__(self, max_wait_s: float) -> None:
        self._max_wait_s = max_wait_s
        self._passed_since: dict[str, float] = {}

    def plan(self, view: StepView) -> Plan:
        """Decide one step. Reads no clock: `view.now_s` is the time."""
        growth = sum(request.growth_blocks for request in view.running)
        draft = _Draft(max(0, view.free_blocks - growth), view.slots, EXACT_LOOKUPS_PER_STEP)
        for index, request in enumerate(view.waiting):
            reason = self._consider(request, draft, view)
            if reason is not None:
                draft.held[request.request_id] = reason
            if reason in (Reason.BEHIND_HEAD, Reason.SLOTS):
                draft.held.update((later.request_id, reason) for later in view.waiting[index + 1 :])
                break
        self._remember_passed(draft, view)
        return Plan(
            order=tuple(draft.order),
            held=draft.held,
            yields=tuple(draft.yields),
            backfilled=draft.backfilled,
            head_start_s=self._head_start_s(draft, view),
            peak_blocks=view.used_blocks + growth + draft.taken_blocks,
        )

    def _consider(self, request: WaitingRequest, draft: _Draft, view: StepView) -> Reason | None:
        """Start a request in the draft, or say why not."""
        if request.not_ready is not None:
            # vLLM looks at what it waits for only when it meets the request in its scan, and skips it at no cost.
            draft.order.append(request.request_id)
            return request.not_ready
        if draft.slots <= 0:
            return Reason.SLOTS
        if draft.closed:
            return Reason.BEHIND_HEAD
        blocks = self._blocks(request, draft, view)
        if blocks <= draft.free_blocks:
            draft.start(request, blocks)
            return None
        if self._age_bound_reached(request, view.now_s):
            if self._make_room(request, blocks, draft, view):
                draft.start(request, blocks)
                return None
            draft.closed = True
        draft.passed.append(request)
        return Reason.BLOCKS

    def _blocks(self, request: WaitingRequest, draft: _Draft, view: StepView) -> int:
        if request.blocks_at_most <= draft.free_blocks or draft.lookups_left == 0:
            return request.blocks_at_most
        draft.lookups_left -= 1
        return view.exact_blocks(request.request_id)

    def _age_bound_reached(self, request: WaitingRequest, now_s: float) -> bool:
        # A request that was never passed counts as passed just now, so that a bound of 0 means: not even once.
        return now_s - self._passed_since.get(request.request_id, now_s) >= self._max_wait_s

    def _make_room(self, request: WaitingRequest, blocks: int, draft: _Draft, view: StepView) -> bool:
        """Let those who passed a request yield to it; False, and nothing changed, if that would not be enough."""
        victims: list[RunningRequest] = []
        free = draft.free_blocks
        already = {request_id for request_id, _ in draft.yields}
        since = self._passed_since.get(request.request_id, view.now_s)
        # Strictly later: whoever ran before `since` was set, ran before the request was passed at all.
        for candidate in sorted(view.running, key=lambda running: running.started_s, reverse=True):
            if free >= blocks:
                break
            passed_it = candidate.key > request.key and candidate.started_s > since
            if passed_it and candidate.request_id not in already:
                victims.append(candidate)
                free += candidate.blocks
        if free < blocks:
            return False
        draft.taken_blocks -= free - draft.free_blocks
        draft.free_blocks = free
        draft.slots += len(victims)
        draft.yields += [(victim.request_id, YieldMode.RECOMPUTE) for victim in victims]
        return True

    def _remember_passed(self, draft: _Draft, view: StepView) -> None:
        """Start the age bound of each held request that was passed in this step; forget those that left."""
        waiting = {request.request_id for request in view.waiting}
        started = set(draft.order)
        self._passed_since = {
            request_id: since
            for request_id, since in self._passed_since.items()
            if request_id in waiting and request_id not in started
        }
        for request in draft.passed:
            if draft.last_started is not None and request.key < draft.last_started:
                self._passed_since.setdefault(request.request_id, view.now_s)

    def _head_start_s(self, draft: _Draft, view: StepView) -> float | None:
        if not draft.passed or not view.step_s:
            return None
        steps = tokens_until_free(view.running, draft.passed[0].blocks_at_most - draft.free_blocks)
        return None if steps is None else steps * view.step_s
