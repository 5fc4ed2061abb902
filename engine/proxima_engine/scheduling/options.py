"""What the gateway tells the scheduler in the engine process, through vLLM's `additional_config`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig

KEY = "proxima"


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    ttft_s: float = 2.0
    """Seconds from its arrival to its first token that a request is promised."""
    stall_s: float = 0.2
    """Longest gap in seconds between two tokens of an answer that is promised."""
    max_stall_s: float = 2.0
    """Longest gap for who has yielded, where KV is kept."""
    max_wait_s: float = 75.0
    """A request that has waited for this long is passed no more."""
    max_policy_failures: int = 3
    """Policy errors in a row after which the scheduler keeps to arrival order until restart."""
    snapshot_endpoint: str = ""
    """ZMQ address of the gateway's receiver; empty: nobody listens, nothing is sent.

    Environment variables in it are expanded in the engine process: the options are part of the key of vLLM's compile
    cache, so an address that changes with every start must not stand here.
    """
    snapshot_interval_s: float = 0.1
    step_log: str = ""
    """File that gets one line of JSON a step; empty for none."""

    @classmethod
    def from_vllm(cls, vllm_config: VllmConfig) -> SchedulerOptions:
        extra = vllm_config.additional_config
        given = extra.get(KEY, {}) if isinstance(extra, dict) else {}
        return cls(**given)

    def as_additional_config(self) -> dict[str, Any]:
        return {KEY: asdict(self)}
