"""Hand-made views for policies: sizes in blocks of 32 tokens where nothing else is said."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from proxima_config.hints import RequestClass
from proxima_engine.policy.plan import Reason
from proxima_engine.policy.view import Changes, RunningRequest, StartedRequest, StepView, WaitingRequest

BLOCK_SIZE = 32
TTFT_S = 2.0
STEP_S = 0.05


def waiting(
    name: str,
    arrival_s: float,
    blocks: int,
    not_ready: Reason | None = None,
    *,
    output: int = 0,
    cap: int = 100,
    ttft_s: float = TTFT_S,
    priority: int = 0,
    request_class: RequestClass = RequestClass.DEFAULT,
    total_s: float = math.inf,
    adapter: int = 0,
) -> WaitingRequest:
    prompt = BLOCK_SIZE * blocks - output
    key = (priority, arrival_s, name)
    return WaitingRequest(name, key, blocks, prompt, output, cap, ttft_s, not_ready, request_class, total_s, adapter)


def running(
    name: str,
    arrival_s: float,
    blocks: int,
    *,
    growth: int = 0,
    started_s: float = 0.0,
    output: int = 0,
    cap: int = 100,
    priority: int = 0,
) -> RunningRequest:
    prompt = BLOCK_SIZE * blocks - output
    return RunningRequest(name, (priority, arrival_s, name), blocks, growth, started_s, prompt, output, cap)


def started(
    request: RunningRequest,
    *,
    shared: int = 0,
    ttft_s: float = TTFT_S,
    request_class: RequestClass = RequestClass.DEFAULT,
) -> StartedRequest:
    """How a request that runs is told to a policy that has not seen it start: as it waited, without any output."""
    blocks = -(-request.prompt_tokens // BLOCK_SIZE)
    as_it_waited = WaitingRequest(
        request_id=request.request_id,
        key=request.key,
        blocks_at_most=blocks,
        prompt_tokens=request.prompt_tokens,
        output_tokens=0,
        cap_tokens=request.cap_tokens,
        ttft_s=ttft_s,
        request_class=request_class,
    )
    return StartedRequest(as_it_waited, shared)


def view(
    *queue: WaitingRequest,
    free: int,
    now_s: float = 0.0,
    slots: int = 100,
    busy: tuple[RunningRequest, ...] = (),
    used: int | None = None,
    exact: Mapping[str, int] | None = None,
    shared: Mapping[str, int] | None = None,
    in_flight: bool = False,
    changes: Changes | None = None,
    denied: str | None = None,
) -> StepView:
    """One step. Where nothing is said about changes, it is the first that a policy sees: everything is new.

    ``shared``: of the blocks of those who run those that others hold too, by request.
    """
    known = {request.request_id: request.blocks_at_most for request in queue} | dict(exact or {})
    if used is None:
        used = sum(request.blocks for request in busy)
    if changes is None:
        changes = Changes(restart=True, arrived=queue, started=[started(request) for request in busy])
    return StepView(
        now_s=now_s,
        step_s=STEP_S,
        free_blocks=free,
        used_blocks=used,
        blocks_total=used + free,
        block_size=BLOCK_SIZE,
        slots=slots,
        in_flight=in_flight,
        growth_blocks=sum(request.growth_blocks for request in busy),
        exact_blocks=known.__getitem__,
        shared_blocks=lambda request_id: (shared or {}).get(request_id, 0),
        list_running=lambda: busy,
        list_waiting=lambda: queue,
        changes=changes,
        denied=denied,
    )


def next_step(seen: StepView, **changed) -> StepView:
    """Where nothing else is said, nothing has happened."""
    return replace(seen, **{"now_s": seen.now_s + STEP_S, "changes": Changes(), **changed})
