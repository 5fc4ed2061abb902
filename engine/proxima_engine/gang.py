"""All-or-nothing allocation: the teaching baseline that Proxima's idea is explained against. Never a default.

The batch is dispatched as a whole, so all who run must have their blocks for the step, or nobody computes. While a step
is in flight somebody may still end and free blocks, and the batch waits for that. When nothing is in flight nobody
could end any more; only then the one that started last gives its blocks up, and after it the one before. Requests start
in order of arrival, and the first that does not fit holds back all behind it.

Without asynchronous scheduling nothing is ever in flight when a step is planned. What is left of the rule then is close
to what vLLM does by itself.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.scheduler import Scheduler

from proxima_engine.policy.in_order import start_in_order, yield_until_rest_fits
from proxima_engine.policy.plan import Plan
from proxima_engine.policy.view import StepView
from proxima_engine.scheduler import ProximaAsyncScheduler, ProximaScheduler
from proxima_engine.scheduling.options import SchedulerOptions

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_logger = logging.getLogger(__name__)


class GangPolicy:
    """Nobody computes while anybody who runs lacks blocks."""

    def plan(self, view: StepView) -> Plan:
        if not view.missing_blocks:
            return start_in_order(view, view.waiting)
        if view.in_flight:
            return Plan(order=(), idle=True, peak_blocks=view.used_blocks)
        return yield_until_rest_fits(view, reversed(view.running))


class GangScheduler(ProximaScheduler):
    def _make_policy(self, options: SchedulerOptions) -> GangPolicy:  # noqa: ARG002  has no options
        return GangPolicy()


class GangAsyncScheduler(GangScheduler, ProximaAsyncScheduler):
    """The same before vLLM's asynchronous scheduler."""


def select_gang_scheduler(vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> Scheduler:
    """Factory that vLLM calls as its scheduler class; see `proxima_engine.scheduler.select_scheduler`."""
    chosen = GangAsyncScheduler if vllm_config.scheduler_config.async_scheduling else GangScheduler
    _logger.info("scheduling by %s", chosen.__name__)
    return chosen(vllm_config, *args, **kwargs)
