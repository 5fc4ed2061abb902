"""Text to tokens and back, with the served model's tokenizer and chat template."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from proxima_server.body import read_object
from proxima_server.routes import TheGateway
from proxima_server.routes.answering import respond

router = APIRouter(tags=["tokens"])


@router.post("/tokenize")
async def tokenize(request: Request, gateway: TheGateway) -> Response:
    """Token ids of a `prompt` or of `messages`."""
    gateway.require_ready()
    return await respond(gateway, "/tokenize", await read_object(request), request)


@router.post("/detokenize")
async def detokenize(request: Request, gateway: TheGateway) -> Response:
    """Text of `tokens`."""
    gateway.require_ready()
    return await respond(gateway, "/detokenize", await read_object(request), request)
