"""Requests and decisions as a scheduler tells of them."""

from __future__ import annotations

from typing import Any

from proxima_engine.telemetry import Decision, Phase, RequestState


def state(request_id: str, phase: Phase, reason: str = "", **changes: Any) -> RequestState:
    values: dict[str, Any] = {
        "request_class": "default",
        "arrived_s": 0.0,
        "prompt_tokens": 40,
        "computed_tokens": 0 if reason else 40,
        "output_tokens": 0,
        "blocks": 0,
        "start_s": None,
    }
    return RequestState(request_id=request_id, phase=phase, reason=reason, **{**values, **changes})


def decision(time_s: float, **changes: Any) -> Decision:
    values: dict[str, Any] = {
        "step": int(time_s * 10),
        "took_s": 0.0005,
        "started": [],
        "yielded": {},
        "ended": [],
        "held": {},
        "head_start_s": None,
        "backfilled": 0,
        "running": 1,
        "waiting": 0,
        "blocks_used": 10,
        "blocks_peak": 20,
    }
    return Decision(time_s=time_s, **{**values, **changes})
