"""Proxima's scheduler with a policy under which somebody yields every few steps, needed or not."""

from __future__ import annotations

from typing import Any

from vllm.config import VllmConfig
from vllm.v1.core.sched.scheduler import Scheduler

from proxima_engine.policy.plan import Plan, Reason, YieldMode
from proxima_engine.policy.view import StepView
from proxima_engine.scheduler import select_scheduler


class Restless:
    """Whoever waits starts; in every third step one of those who run yields, and resumes two steps later. Whoever runs
    may be next."""

    def __init__(self, mode: YieldMode) -> None:
        self._mode, self._steps, self.yields = mode, 0, 0

    def plan(self, view: StepView) -> Plan:
        self._steps += 1
        waiting = [request.request_id for request in view.waiting]
        held = dict.fromkeys(waiting, Reason.BLOCKS)
        likely = tuple(request.request_id for request in view.running)
        if view.running and self._steps % 3 == 0:
            self.yields += 1
            chosen = view.running[self.yields % len(view.running)]
            return Plan(order=(), held=held, yields=((chosen.request_id, self._mode),), likely_victims=likely)
        if view.running and self._steps % 3 == 1:
            # Who has yielded is fetched meanwhile.
            return Plan(order=(), held=held, likely_victims=likely)
        return Plan(order=tuple(waiting), likely_victims=likely)


def restless_scheduler(vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> Scheduler:
    """A factory, as `select_scheduler` is. Who yields is swapped where `--swap` is on."""
    scheduler = select_scheduler(vllm_config, *args, **kwargs)
    scheduler.proxima_policy = Restless(YieldMode.RECOMPUTE if scheduler.proxima_swap is None else YieldMode.SWAP)
    return scheduler
