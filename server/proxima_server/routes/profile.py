"""Timelines of what the engine does (docs/profiling.md). For operators only: profiling slows everyone's requests."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from proxima_engine.runtime import EngineRuntime
from proxima_server.disconnect import until_disconnect
from proxima_server.errors import APIError, ErrorCode
from proxima_server.routes import TheGateway

router = APIRouter(tags=["admin"])

MAX_DURATION_S = 60.0
"""A trace of a minute has hundreds of megabytes, which no viewer opens."""

_HOW = "start the gateway with --profiler-config.profiler torch --profiler-config.torch_profiler_dir /absolute/folder"


@router.post("/debug/profile")
async def profile(
    request: Request,
    gateway: TheGateway,
    duration_s: Annotated[float, Query(gt=0, le=MAX_DURATION_S)] = 5.0,
    prefix: Annotated[str | None, Query(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")] = None,
) -> dict[str, Any]:
    """Profile the engine for `duration_s` seconds and say which files that made; their names begin with `prefix`.

    Ends early, and keeps what there is, when the client goes away.
    """
    gateway.require_ready()
    config = gateway.runtime.args.profiler_config
    if config is None or config.profiler is None:
        raise APIError(ErrorCode.NOT_SUPPORTED, f"Profiling is not set up; {_HOW}")
    if gateway.profiling.locked():
        raise APIError(ErrorCode.CONFLICT, "A profile is being taken; ask again when it is done")
    async with gateway.profiling:
        folder = Path(config.torch_profiler_dir or config.proton_profiler_dir or "/nonexistent")
        before = _files(folder)
        await until_disconnect(request, _take(gateway.runtime, duration_s, prefix))
        made = sorted(path.name for path in _files(folder) - before)
    return {"profiler": config.profiler, "duration_s": duration_s, "folder": str(folder), "files": made}


async def _take(runtime: EngineRuntime, duration_s: float, prefix: str | None) -> None:
    await runtime.client.start_profile(profile_prefix=prefix)
    try:
        await asyncio.sleep(duration_s)
    finally:
        await runtime.client.stop_profile()


def _files(folder: Path) -> set[Path]:
    return set(folder.rglob("*")) if folder.is_dir() else set()
