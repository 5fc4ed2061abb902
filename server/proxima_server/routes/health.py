"""Health for people, load balancers and Kubernetes probes (docs/health.md).

* live: the process is worth keeping. It fails when the engine is lost or hangs, which only a restart cures.
* startup: loading was over once. Give its probe the patience a large model needs.
* ready (and plain `/health`): requests are answered now.

A probe reads what the gateway knows already. It asks the engine nothing and computes no token, so that probes cost
nothing under load and none waits behind another.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from proxima_server.gateway import Gateway
from proxima_server.routes import TheGateway

router = APIRouter(tags=["health"])

_DOWN: dict[int | str, dict[str, Any]] = {503: {"description": "not so; the body says why"}}


@router.get("/health", responses=_DOWN)
@router.get("/health/ready", responses=_DOWN)
async def ready(gateway: TheGateway) -> Response:
    """Are requests answered now?"""
    return _report(gateway, ok=gateway.ready)


@router.get("/health/live", responses=_DOWN)
async def live(gateway: TheGateway) -> Response:
    """Is the process worth keeping?"""
    return _report(gateway, ok=gateway.alive)


@router.get("/health/startup", responses=_DOWN)
async def startup(gateway: TheGateway) -> Response:
    """Is loading over?"""
    return _report(gateway, ok=gateway.started)


def _report(gateway: Gateway, *, ok: bool) -> Response:
    body: dict[str, Any] = {
        "status": "ok" if ok else "unavailable",
        "phase": gateway.phase.value,
        "draining": _draining(gateway),
        "model": gateway.settings.model,
        "scheduler": {"kind": gateway.settings.scheduler.kind, "policy": gateway.policy_state()},
        "restarts": gateway.restarts,
        "failure": gateway.failure,
    }
    return JSONResponse(body, status_code=200 if ok else 503, headers={"Cache-Control": "no-store"})


def _draining(gateway: Gateway) -> dict[str, Any] | None:
    drain = gateway.drain
    if not drain.draining:
        return None
    return {"remaining_requests": drain.remaining, "remaining_s": round(drain.remaining_s, 3)}
