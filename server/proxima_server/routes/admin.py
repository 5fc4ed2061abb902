"""For operators (:mod:`proxima_server.admin_access` says who they are)."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from proxima_server.routes import TheGateway

router = APIRouter(tags=["admin"])


@router.post("/admin/drain", status_code=202)
async def drain(gateway: TheGateway) -> dict[str, Any]:
    """Do what SIGTERM does: refuse new requests, let the others finish, then end the process. Returns at once."""
    gateway.begin_drain()
    return {
        "status": "draining",
        "remaining_requests": gateway.drain.remaining,
        "remaining_s": round(gateway.drain.remaining_s, 3),
    }
