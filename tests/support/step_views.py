"""Hand-made views for policies: sizes in blocks of 32 tokens where nothing else is said."""

from __future__ import annotations

from collections.abc import Mapping

from proxima_engine.policy.plan import Reason
from proxima_engine.policy.view import RunningRequest, StepView, WaitingRequest

BLOCK_SIZE = 32


def waiting(
    name: str,
    arrival_s: float,
    blocks: int,
    not_ready: Reason | None = None,
    *,
    output: int = 0,
    cap: int = 100,
) -> WaitingRequest:
    prompt = BLOCK_SIZE * blocks - output
    return WaitingRequest(name, (0, arrival_s, name), blocks, prompt, output, cap, not_ready)


def running(
    name: str,
    arrival_s: float,
    blocks: int,
    *,
    growth: int = 0,
    started_s: float = 0.0,
    output: int = 0,
    cap: int = 100,
) -> RunningRequest:
    prompt = BLOCK_SIZE * blocks - output
    return RunningRequest(name, (0, arrival_s, name), blocks, growth, started_s, prompt, output, cap)


def view(
    *queue: WaitingRequest,
    free: int,
    now_s: float = 0.0,
    slots: int = 100,
    busy: tuple[RunningRequest, ...] = (),
    exact: Mapping[str, int] | None = None,
    in_flight: bool = False,
) -> StepView:
    known = {request.request_id: request.blocks_at_most for request in queue} | dict(exact or {})
    used = sum(request.blocks for request in busy)
    return StepView(
        now_s=now_s,
        step_s=0.05,
        free_blocks=free,
        used_blocks=used,
        blocks_total=used + free,
        block_size=BLOCK_SIZE,
        slots=slots,
        running=busy,
        waiting=queue,
        in_flight=in_flight,
        exact_blocks=known.__getitem__,
    )
