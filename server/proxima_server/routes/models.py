"""Which models answer here."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from proxima_server.door.auth import key_of
from proxima_server.errors import APIError, ErrorCode
from proxima_server.routes import TheGateway

router = APIRouter(tags=["OpenAI"])


@router.get("/v1/models")
async def list_models(request: Request, gateway: TheGateway) -> dict[str, Any]:
    """The served model and its adapters; of them those that the API key may use. A gateway that drains offers none: who
    asks this before sending requests, as load balancers do, is to look elsewhere."""
    gateway.require_ready()
    listed = await gateway.serving.models()
    allowed = key_of(request.state).models
    return listed if allowed is None else {**listed, "data": [card for card in listed["data"] if card["id"] in allowed]}


@router.get("/v1/models/{model:path}")
async def get_model(model: str, request: Request, gateway: TheGateway) -> dict[str, Any]:
    """One of them. Names may contain slashes (`meta-llama/Llama-2-7b-chat-hf`)."""
    listed = (await list_models(request, gateway))["data"]
    for card in listed:
        # A model served under the path of its folder: its leading slash was collapsed with the one before.
        if card["id"].lstrip("/") == model.lstrip("/"):
            found: dict[str, Any] = card
            return found
    names = ", ".join(card["id"] for card in listed)
    raise APIError(
        ErrorCode.MODEL_NOT_FOUND, f"The model '{model}' does not exist; served here: {names}", param="model"
    )
