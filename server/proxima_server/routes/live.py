"""What goes on now, for operators: one JSON document, or one each second as server-sent events."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from proxima_engine.telemetry import DECISIONS_KEPT
from proxima_server.live.explain import explain, newest
from proxima_server.live.trace import chrome_trace
from proxima_server.routes import TheGateway

router = APIRouter(tags=["admin"])

REQUESTS_MOST = 10_000
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


@router.get("/debug/live")
async def live(request: Request, gateway: TheGateway) -> Response:
    """Requests, KV blocks, latencies, door and drain, as of now. With `Accept: text/event-stream` again each second."""
    if "text/event-stream" in request.headers.get("accept", ""):
        events = request.app.state.feed.follow(gateway.ended)
        return StreamingResponse(events, media_type="text/event-stream", headers=_HEADERS)
    return Response(request.app.state.feed.latest(), media_type="application/json", headers=_HEADERS)


@router.get("/debug/schedule")
async def schedule(
    gateway: TheGateway,
    decisions: Annotated[int, Query(ge=0, le=DECISIONS_KEPT)] = 100,
    requests: Annotated[int, Query(ge=0, le=REQUESTS_MOST)] = 200,
    format: Annotated[Literal["json", "chrome"], Query()] = "json",  # noqa: A002 - the name clients see
) -> dict[str, Any]:
    """Why each request waits and when it is forecast to start, who runs, and the newest decisions of the scheduler.

    Up to `requests` of those who wait and of those who run; `waiting_left_out` and `running_left_out` count the others.

    `format=chrome` gives the decisions as a trace for ui.perfetto.dev or chrome://tracing. The native scheduler does
    not say what it decides: all lists are empty.
    """
    if format == "chrome":
        return chrome_trace(newest(gateway, decisions))
    return explain(gateway, decisions, requests)
