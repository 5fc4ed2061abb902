"""Health for people, load balancers and Kubernetes probes.

* live: the process is worth keeping. It fails when the engine has died, which only a restart cures.
* startup: loading is over. Give its probe the patience a large model needs.
* ready (and plain `/health`): requests are answered now.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from proxima_engine.runtime import EnginePhase
from proxima_server.gateway import Gateway
from proxima_server.routes import TheGateway

router = APIRouter(tags=["health"])

_DOWN: dict[int | str, dict[str, Any]] = {503: {"description": "not so; the body says why"}}


@router.get("/health", responses=_DOWN)
@router.get("/health/ready", responses=_DOWN)
async def ready(gateway: TheGateway) -> Response:
    """Are requests answered now?"""
    return _report(gateway, ok=gateway.phase is EnginePhase.READY)


@router.get("/health/live", responses=_DOWN)
async def live(gateway: TheGateway) -> Response:
    """Is the process worth keeping?"""
    return _report(gateway, ok=gateway.phase is not EnginePhase.FAILED)


@router.get("/health/startup", responses=_DOWN)
async def startup(gateway: TheGateway) -> Response:
    """Is loading over?"""
    return _report(gateway, ok=gateway.phase is EnginePhase.READY)


def _report(gateway: Gateway, *, ok: bool) -> Response:
    body: dict[str, Any] = {
        "status": "ok" if ok else "unavailable",
        "phase": gateway.phase.value,
        "model": gateway.settings.model,
        "scheduler": {"kind": gateway.settings.scheduler.kind, "policy": gateway.policy_state()},
        "failure": gateway.failure,
    }
    return JSONResponse(body, status_code=200 if ok else 503, headers={"Cache-Control": "no-store"})
