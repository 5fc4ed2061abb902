"""OpenAI's completions and chat completions."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from proxima_server.body import read_object
from proxima_server.routes import TheGateway
from proxima_server.routes.answering import respond

router = APIRouter(tags=["OpenAI"])

_STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}


@router.post("/v1/chat/completions", responses=_STREAM)
async def chat_completions(request: Request, gateway: TheGateway) -> Response:
    """Answer a conversation, at once or as server-sent events (`"stream": true`)."""
    gateway.require_ready()
    return await respond(gateway, "/v1/chat/completions", await read_object(request), request)


@router.post("/v1/completions", responses=_STREAM)
async def completions(request: Request, gateway: TheGateway) -> Response:
    """Continue one prompt or several, given as text or as token ids."""
    gateway.require_ready()
    return await respond(gateway, "/v1/completions", await read_object(request), request)
