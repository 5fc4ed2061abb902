"""Anthropic's endpoints, for clients written against its API."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from proxima_server.body import read_object
from proxima_server.routes import TheGateway
from proxima_server.routes.answering import STREAM_RESPONSES, respond

router = APIRouter(tags=["Anthropic"])


@router.post("/v1/messages", responses=STREAM_RESPONSES)
async def messages(request: Request, gateway: TheGateway) -> Response:
    """Answer a conversation, at once or as server-sent events (`"stream": true`)."""
    gateway.require_ready()
    return await respond(gateway, "/v1/messages", await read_object(request), request)


@router.post("/v1/messages/count_tokens")
async def count_tokens(request: Request, gateway: TheGateway) -> Response:
    """How many tokens the prompt of such a conversation has."""
    gateway.require_ready()
    return await respond(gateway, "/v1/messages/count_tokens", await read_object(request), request)
