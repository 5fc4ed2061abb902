"""The arms of a comparison: each a way to schedule, ready to be built around vLLM's own scheduler classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from proxima_engine.gang import GangPolicy
from proxima_engine.lab.arm_names import ARM_NAMES, check
from proxima_engine.lab.bare_scheduler import SchedulerFactory
from proxima_engine.lab.baselines import deadline_watermark
from proxima_engine.lab.baselines.deadline_watermark import DeadlineWatermarkPolicy
from proxima_engine.lab.baselines.hrrn import HrrnPolicy
from proxima_engine.lab.baselines.past_future import PastFutureOraclePolicy, PastFuturePolicy
from proxima_engine.lab.baselines.sglang_ratio import SglangRatioPolicy
from proxima_engine.lab.baselines.sjf_oracle import SjfOraclePolicy
from proxima_engine.policy.admission import ProximaPolicy
from proxima_engine.policy.protocol import Policy
from proxima_engine.scheduler import ProximaAsyncScheduler, ProximaScheduler
from proxima_engine.scheduling.guard import PolicyGuard
from proxima_engine.scheduling.options import SchedulerOptions

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class ArmContext:
    """What arms may be told about the run."""

    ttft_s: float
    """TTFT target of all requests, for arms that know deadlines."""
    stall_s: float
    """Target of the longest gap, for arms that pace their steps."""
    max_wait_s: float
    """Age bound, for arms that have one."""
    true_lengths: Mapping[str, int]
    """Output tokens by request id, for arms that cheat."""
    seed: int


MakePolicy = Callable[[ArmContext, SchedulerOptions], Policy]


@dataclass(frozen=True, slots=True)
class ArmSpec:
    name: str
    about: str
    source: str
    """Where the rule is published."""
    make: Callable[[ArmContext], SchedulerFactory]
    cheats: bool = False
    """It knows what no server can know; an upper bound, not a competitor."""
    watermark: float = 0.0
    """For `scheduler_config.watermark`: share of the blocks that vLLM keeps free when it admits beside others."""
    host_blocks: float = 0.0
    """Host memory for KV of those who yield, as a multiple of the pool."""


class _StrictGuard(PolicyGuard):
    """The lab measures policies, so an error in one is an error, not a step in arrival order."""

    def attempt(self, planning: Callable[[], _Result]) -> _Result | None:
        return planning()


class _ProximaArm(ProximaScheduler):
    def _make_guard(self, options: SchedulerOptions) -> PolicyGuard:
        return _StrictGuard(options.max_policy_failures)


class _ProximaAsyncArm(_ProximaArm, ProximaAsyncScheduler):
    pass


def _by_mode(plain: type[Scheduler], overlapping: type[Scheduler]) -> SchedulerFactory:
    def build(vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> Scheduler:
        chosen = overlapping if vllm_config.scheduler_config.async_scheduling else plain
        return chosen(vllm_config, *args, **kwargs)

    return build


def _native(_context: ArmContext) -> SchedulerFactory:
    return _by_mode(Scheduler, AsyncScheduler)


def _planned_by(make_policy: MakePolicy) -> Callable[[ArmContext], SchedulerFactory]:
    """Schedulers that put another policy before vLLM's `schedule()`."""

    def make(context: ArmContext) -> SchedulerFactory:
        class PolicyArm(_ProximaArm):
            def _make_options(self) -> SchedulerOptions:
                return replace(
                    super()._make_options(),
                    ttft_s=context.ttft_s,
                    stall_s=context.stall_s,
                    max_wait_s=context.max_wait_s,
                )

            def _make_policy(self, options: SchedulerOptions) -> Policy:
                return make_policy(context, options)

        class PolicyAsyncArm(PolicyArm, _ProximaAsyncArm):
            pass

        return _by_mode(PolicyArm, PolicyAsyncArm)

    return make


_ALL = (
    ArmSpec(
        "native",
        "vLLM's own scheduler, untouched",
        "vLLM v1, Scheduler and AsyncScheduler of the pinned release",
        _native,
    ),
    ArmSpec(
        "native-watermark",
        "vLLM's own scheduler, keeping 5 % of the blocks free at admission",
        "vLLM v1, scheduler_config.watermark",
        _native,
        watermark=0.05,
    ),
    ArmSpec(
        "gang",
        "all-or-nothing: nobody computes while anybody who runs lacks blocks",
        "proxima_engine.gang, the allocation that the idea is explained against",
        _planned_by(lambda *_: GangPolicy()),
    ),
    ArmSpec(
        "sglang-ratio",
        "admission by new-token ratio with decay, retraction of the shortest answers",
        "SGLang, schedule_policy.py (PrefillAdder) and schedule_batch.py (retract_decode)",
        _planned_by(lambda *_: SglangRatioPolicy()),
    ),
    ArmSpec(
        "past-future",
        "admission by the future peak over lengths drawn from recent answers",
        "Gong et al., Past-Future Scheduler, ASPLOS 2025 (LightLLM)",
        _planned_by(lambda context, _: PastFuturePolicy(context.seed)),
    ),
    ArmSpec(
        "past-future-oracle",
        "past-future with the true lengths",
        "Gong et al., Past-Future Scheduler, ASPLOS 2025 (LightLLM)",
        _planned_by(lambda context, _: PastFutureOraclePolicy(context.true_lengths)),
        cheats=True,
    ),
    ArmSpec(
        "hrrn",
        "highest response ratio next, by prompt length",
        "Brinch Hansen, IFIP Congress 1971; SGLang, schedule_policy.py, hrrn",
        _planned_by(lambda *_: HrrnPolicy()),
    ),
    ArmSpec(
        "deadline-watermark",
        "on-time requests first, late ones last, 5 % of the blocks kept free at admission",
        "Moore, Management Science 15(1), 1968; vLLM's watermark",
        _planned_by(lambda context, _: DeadlineWatermarkPolicy(context.ttft_s)),
        watermark=deadline_watermark.WATERMARK,
    ),
    ArmSpec(
        "sjf-oracle",
        "shortest remaining answer first, by the true length",
        "Smith, Naval Research Logistics Quarterly 3(1-2), 1956",
        _planned_by(lambda context, _: SjfOraclePolicy(context.true_lengths)),
        cheats=True,
    ),
    ArmSpec(
        "proxima",
        "Proxima's scheduler as it stands",
        "proxima_engine.policy",
        _planned_by(lambda _, options: ProximaPolicy(options.max_wait_s, options.stall_s, options.max_stall_s)),
    ),
    ArmSpec(
        "proxima-swap",
        "Proxima's scheduler, with KV of those who yield kept in host memory",
        "proxima_engine.policy and proxima_engine.swap",
        _planned_by(lambda _, options: ProximaPolicy(options.max_wait_s, options.stall_s, options.max_stall_s)),
        host_blocks=2.0,
    ),
)
_BY_NAME = {arm.name: arm for arm in _ALL}
ARMS: Mapping[str, ArmSpec] = {name: _BY_NAME[name] for name in ARM_NAMES}


def arm(name: str) -> ArmSpec:
    """Raises UsageError for a name that no arm has."""
    check("arm", name)
    return ARMS[name]
