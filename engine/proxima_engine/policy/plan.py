"""What the policy hands to the scheduler: one immutable decision per step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Reason(StrEnum):
    """Why a waiting request does not start in this step; shared by metrics, door and dashboard."""

    BLOCKS = "blocks"
    """Its KV blocks are not free."""
    FORECAST = "forecast"
    """Its blocks are free now, but the forecast peak of demand would not fit."""
    BEHIND_HEAD = "behind_head"
    """It would fit, but may not pass a request that has been passed for too long, or was not looked at yet."""
    CLASS_LIMIT = "class_limit"
    """Its class has started with all the blocks that it may have while others wait."""
    SLOTS = "slots"
    """As many requests run as the engine can batch (vLLM's `max_num_seqs`)."""
    LORA = "lora"
    """All adapter slots of the batch are taken by other adapters."""
    REMOTE_KV = "remote_kv"
    """Its KV is still being loaded."""
    GRAMMAR = "grammar"
    """Its structured-output grammar is still being compiled."""
    PAUSED = "paused"
    """The engine is paused."""


class YieldMode(StrEnum):
    """How a running request gives up its blocks."""

    RECOMPUTE = "recompute"
    SWAP = "swap"


@dataclass(frozen=True, slots=True)
class Plan:
    """Advice for one step; vLLM's KV manager has the last word at dispatch."""

    order: tuple[str, ...]
    """Ids of waiting requests to start, first to last. Nobody else is considered in this step."""
    held: Mapping[str, Reason] = field(default_factory=dict)
    """Why each other waiting request that was looked at does not start, in the order in which they were."""
    yields: tuple[tuple[str, YieldMode], ...] = ()
    """Running requests that give up their blocks before the step."""
    likely_victims: tuple[str, ...] = ()
    """Running requests that are likely to yield next, the first of them first, while that is near. Only where their KV
    is kept."""
    idle: bool = False
    """Nobody computes in this step, not even those who run."""
    backfilled: int = 0
    """How many requests in `order` pass an older one that does not fit."""
    head_start_s: float | None = None
    """Seconds until the most urgent held request is forecast to fit; None when none is held or that is unknown."""
    token_budget: int | None = None
    """Most tokens that the step computes, of prompts and answers; None for as many as vLLM allows."""
    peak_blocks: int = 0
    """Highest number of blocks that those who run are forecast to hold, at the policy's confidence."""
