"""Why each request of the engine runs or waits, and what was decided lately."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from proxima_engine.policy.plan import Reason
from proxima_engine.telemetry import REQUESTS_NAMED, Decision, RequestState
from proxima_server.gateway import Gateway

MEANING: Mapping[Reason, str] = {
    Reason.BLOCKS: "Its KV blocks are not free",
    Reason.FORECAST: "Its KV blocks are free now, but the forecast peak of demand with it does not fit into the pool",
    Reason.BEHIND_HEAD: "It may not pass those before it, or is too far behind to be looked at yet",
    Reason.CLASS_LIMIT: "Its class holds all the KV blocks that it may hold while others wait",
    Reason.SLOTS: "As many requests run as the engine can batch (max_num_seqs)",
    Reason.LORA: "All adapter slots of the batch are taken by other adapters",
    Reason.REMOTE_KV: "Its KV is still being loaded",
    Reason.GRAMMAR: "Its structured-output grammar is still being compiled",
    Reason.PAUSED: "The engine is paused",
}


def explain(gateway: Gateway, decisions: int, requests: int) -> dict[str, Any]:
    """Up to ``requests`` each of those who wait and of those who run, how many more there are, and the newest
    ``decisions`` of all ranks, oldest first."""
    receiver = gateway.runtime.snapshot_receiver
    now_s = time.time()
    states = [(rank, state) for rank, of_rank in sorted(receiver.requests.items()) for state in of_rank]
    waiting = [(rank, state) for rank, state in states if state.reason]
    running = [(rank, state) for rank, state in states if not state.reason]
    unnamed_waiting, unnamed_running = _unnamed(gateway)
    return {
        "scheduler": gateway.settings.scheduler.kind,
        "policy": gateway.policy_state(),
        "waiting": [_waiting(rank, state, now_s) for rank, state in waiting[:requests]],
        "waiting_left_out": max(0, len(waiting) - requests) + unnamed_waiting,
        "running": [_running(rank, state, now_s) for rank, state in running[:requests]],
        "running_left_out": max(0, len(running) - requests) + unnamed_running,
        "decisions": [_decision(rank, decision) for rank, decision in newest(gateway, decisions)],
    }


def _unnamed(gateway: Gateway) -> tuple[int, int]:
    """How many wait and run whom the schedulers count, but are too many to name."""
    receiver = gateway.runtime.snapshot_receiver
    waiting = running = 0
    for rank, snapshot in receiver.latest.items():
        named_waiting = sum(1 for state in receiver.requests.get(rank, ()) if state.reason)
        named_running = len(receiver.requests.get(rank, ())) - named_waiting
        # Counts are newer than names: below the limit everybody is named, sooner or later.
        if named_waiting >= REQUESTS_NAMED:
            waiting += max(0, sum(sum(classes.values()) for classes in snapshot.waiting.values()) - named_waiting)
        if named_running >= REQUESTS_NAMED:
            running += max(0, snapshot.running - named_running)
    return waiting, running


def newest(gateway: Gateway, count: int) -> list[tuple[int, Decision]]:
    """That many decisions with their ranks, oldest first."""
    kept = gateway.runtime.snapshot_receiver.decisions
    return list(kept)[max(0, len(kept) - count) :]


def _request(rank: int, state: RequestState, now_s: float) -> dict[str, Any]:
    return {
        "id": state.request_id,
        "rank": rank,
        "class": state.request_class,
        "phase": state.phase.value,
        "age_s": round(max(0.0, now_s - state.arrived_s), 3),
        "prompt_tokens": state.prompt_tokens,
        "output_tokens": state.output_tokens,
    }


def _waiting(rank: int, state: RequestState, now_s: float) -> dict[str, Any]:
    start_s = None if state.start_s is None else round(state.start_s, 3)
    meaning = MEANING[Reason(state.reason)]
    return _request(rank, state, now_s) | {"reason": state.reason, "because": meaning, "estimated_start_s": start_s}


def _running(rank: int, state: RequestState, now_s: float) -> dict[str, Any]:
    return _request(rank, state, now_s) | {"computed_tokens": state.computed_tokens, "blocks": state.blocks}


def _decision(rank: int, decision: Decision) -> dict[str, Any]:
    return {
        "time_s": decision.time_s,
        "rank": rank,
        "step": decision.step,
        "planning_ms": round(decision.took_s * 1000, 3),
        "started": decision.started,
        "backfilled": decision.backfilled,
        "yielded": decision.yielded,
        "ended": decision.ended,
        "held": decision.held,
        "head_start_s": decision.head_start_s,
        "running": decision.running,
        "waiting": decision.waiting,
        "blocks_used": decision.blocks_used,
        "blocks_peak": decision.blocks_peak,
    }
