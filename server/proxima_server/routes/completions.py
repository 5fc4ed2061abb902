"""OpenAI's endpoints that compute."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from proxima_server.body import read_object
from proxima_server.routes import TheGateway
from proxima_server.routes.answering import STREAM_RESPONSES, respond

router = APIRouter(tags=["OpenAI"])


@router.post("/v1/chat/completions", responses=STREAM_RESPONSES)
async def chat_completions(request: Request, gateway: TheGateway) -> Response:
    """Answer a conversation, at once or as server-sent events (`"stream": true`)."""
    gateway.require_ready()
    return await respond(gateway, "/v1/chat/completions", await read_object(request), request)


@router.post("/v1/completions", responses=STREAM_RESPONSES)
async def completions(request: Request, gateway: TheGateway) -> Response:
    """Continue one prompt or several, given as text or as token ids."""
    gateway.require_ready()
    return await respond(gateway, "/v1/completions", await read_object(request), request)


@router.post("/v1/responses", responses=STREAM_RESPONSES)
async def responses(request: Request, gateway: TheGateway) -> Response:
    """Answer `input`. Nothing is stored: send the whole conversation each time."""
    gateway.require_ready()
    return await respond(gateway, "/v1/responses", await read_object(request), request)


@router.post("/v1/embeddings")
async def embeddings(request: Request, gateway: TheGateway) -> Response:
    """Vectors of texts, where the served model makes them."""
    gateway.require_ready()
    return await respond(gateway, "/v1/embeddings", await read_object(request), request)
