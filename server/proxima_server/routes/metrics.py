"""Metrics in Prometheus' text format: vLLM's own and ours (docs/metrics.md)."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from proxima_server.metrics.exposition import CONTENT_TYPE, render
from proxima_server.routes import TheGateway

router = APIRouter(tags=["health"])


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request, gateway: TheGateway) -> Response:
    """Complete from the start; vLLM's metrics join when the engine has loaded."""
    if gateway.settings.telemetry.gpu:
        await asyncio.to_thread(gateway.gpus.refresh)
    return Response(render(request.app.state.registry), media_type=CONTENT_TYPE)
