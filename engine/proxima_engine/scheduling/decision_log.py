"""Notes the steps in which the scheduler decided something new, for those who ask why."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from proxima_engine.policy.plan import Plan
from proxima_engine.telemetry import DECISIONS_KEPT, Decision

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput

    from proxima_engine.scheduler import ProximaScheduler

PREEMPTED = "preempted"
"""How one gave up its blocks whom vLLM itself preempted."""
HELD_NAMED = 100
"""Of those who are held the first so many: thousands may be, in each of a thousand decisions that are kept."""
_NO_PLAN = Plan(order=())


class DecisionLog:
    def __init__(self, scheduler: ProximaScheduler) -> None:
        self._scheduler = scheduler
        self._pending: deque[Decision] = deque(maxlen=DECISIONS_KEPT)
        self._ended: list[str] = []
        self._held: dict[str, str] = {}

    def ended(self, request_id: str) -> None:
        self._ended.append(request_id)

    def dispatched(self, step: int, plan: Plan, output: SchedulerOutput, blocks_used: int, took_s: float) -> None:
        """Note the step unless it only went on with what was decided before."""
        started = [new.req_id for new in output.scheduled_new_reqs]
        started += output.scheduled_cached_reqs.resumed_req_ids
        yielded = dict.fromkeys(output.preempted_req_ids or (), PREEMPTED)
        yielded |= {request_id: str(mode) for request_id, mode in plan.yields}
        first = islice(plan.held.items(), HELD_NAMED)
        held = {request_id: str(reason) for request_id, reason in first if request_id not in started}
        if started or yielded or self._ended or held != self._held:
            self._note(step, plan, started, yielded, held, blocks_used, took_s)

    def fell_idle(self, step: int) -> None:
        """There is no next step that would tell who has ended."""
        if self._ended:
            self._note(step, _NO_PLAN, [], {}, {}, 0, 0.0)

    def take(self) -> list[Decision]:
        """All since the last call, oldest first."""
        taken = list(self._pending)
        self._pending.clear()
        return taken

    def _note(
        self,
        step: int,
        plan: Plan,
        started: Sequence[str],
        yielded: dict[str, str],
        held: dict[str, str],
        blocks_used: int,
        took_s: float,
    ) -> None:
        running, waiting = self._scheduler.get_request_counts()
        decision = Decision(
            time_s=time.time(),
            step=step,
            took_s=took_s,
            started=list(started),
            yielded=yielded,
            ended=self._ended,
            held=held,
            head_start_s=plan.head_start_s,
            backfilled=plan.backfilled,
            running=running,
            waiting=waiting,
            blocks_used=blocks_used,
            blocks_peak=max(blocks_used, plan.peak_blocks),
        )
        self._pending.append(decision)
        self._ended, self._held = [], held
