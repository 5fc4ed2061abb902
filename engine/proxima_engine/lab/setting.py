"""What is the same for all arms of an experiment."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from proxima_config.settings import SchedulerSettings
from proxima_config.slo import SLO
from proxima_engine.lab.profiles import Profile
from proxima_engine.lab.requests import Workload


@dataclass(frozen=True, slots=True)
class Setting:
    workload: Workload
    profile: Profile
    blocks: int
    block_size: int
    slo: SLO
    max_wait_s: float = SchedulerSettings().max_wait_s
    """Age bound of Proxima's own arm."""
    seed: int = 0
    prefix_caching: bool = True
    with_wall_time: bool = False
    with_timeline: bool = False

    @property
    def longest_tokens(self) -> int:
        """The engine's context: what the longest request may need, as far as the pool holds it."""
        wanted = max((each.input_tokens + each.cap_tokens for each in self.workload.requests), default=1)
        return min(wanted, self.blocks * self.block_size)

    def describe(self) -> dict[str, Any]:
        workload, limits = self.workload, self.profile.limits
        arrivals = "all arrivals" if workload.concurrency is None else f"{workload.concurrency} at once"
        return {
            "workload": workload.name,
            "requests": len(workload.requests),
            "concurrency": workload.concurrency,
            "profile": self.profile.name,
            "blocks": self.blocks,
            "block_size": self.block_size,
            "max_model_len": self.longest_tokens,
            "limits": asdict(limits),
            "slo": asdict(self.slo),
            "max_wait_s": self.max_wait_s,
            "seed": self.seed,
            "prefix_caching": self.prefix_caching,
            "sentence": f"{workload.name}: {len(workload.requests)} requests, {arrivals}; {self.profile.name}, "
            f"{self.blocks} blocks of {self.block_size}; attained with TTFT ≤ {self.slo.ttft_s:g} s and stall ≤ "
            f"{self.slo.stall_s:g} s",
        }
