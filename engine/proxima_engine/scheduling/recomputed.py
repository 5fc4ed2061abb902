"""How many tokens a scheduler has computed again, because the requests had lost their KV."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

# Below vLLM's own: in the engine's process nothing else that is only told is shown.
_logger = logging.getLogger("vllm.proxima_engine.recomputed")


@dataclass(slots=True)
class Recomputed:
    """Told of every preemption, of every step and of every end."""

    total: int = 0
    """Tokens whose KV was there once and that were scheduled again."""
    _behind: dict[str, tuple[Request, int]] = field(default_factory=dict)
    """Those who have lost their KV and are not as far as they were: up to which token they had been computed."""

    def preempted(self, request: Request) -> None:
        reached = min(request.num_computed_tokens, request.num_tokens)
        _, before = self._behind.get(request.request_id, (request, 0))
        self._behind[request.request_id] = request, max(reached, before)

    def scheduled(self, output: SchedulerOutput) -> None:
        """vLLM has counted the tokens of the step as computed already."""
        for request_id, (request, lost) in list(self._behind.items()):
            tokens = output.num_scheduled_tokens.get(request_id, 0)
            if not tokens:
                continue
            end = request.num_computed_tokens
            self.total += max(0, min(end, lost) - (end - tokens))
            if end >= lost:
                del self._behind[request_id]

    def ended(self, request_id: str) -> None:
        self._behind.pop(request_id, None)


class CountedScheduler(Scheduler):
    """vLLM's scheduler as it is, which says at its end what it computed again. For measurements."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.recomputed = Recomputed()

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:  # noqa: FBT001, FBT002  vLLM's signature
        output = super().schedule(throttle_prefills)
        self.recomputed.scheduled(output)
        return output

    def shutdown(self) -> None:
        _logger.info("tokens computed again: %d", self.recomputed.total)
        super().shutdown()

    def _preempt_request(self, request: Request, timestamp: float, drop_stale_output: bool = False) -> None:  # noqa: FBT001, FBT002
        self.recomputed.preempted(request)
        super()._preempt_request(request, timestamp, drop_stale_output)

    def _free_request(self, request: Request, delay_free_blocks: bool = False) -> Any:  # noqa: FBT001, FBT002
        self.recomputed.ended(request.request_id)
        return super()._free_request(request, delay_free_blocks)


class CountedAsyncScheduler(CountedScheduler, AsyncScheduler):
    """The same around vLLM's asynchronous scheduler."""


def counted_native(vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> Scheduler:
    """For `--scheduler native --scheduler-cls proxima_engine.scheduling.recomputed.counted_native`."""
    chosen = CountedAsyncScheduler if vllm_config.scheduler_config.async_scheduling else CountedScheduler
    return chosen(vllm_config, *args, **kwargs)
