"""What the routes need from the engine's serving layer; :mod:`proxima_server.vllm_serving` is the real one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from fastapi import Request
from starlette.responses import Response


class EventSource(Protocol):
    """An async generator of server-sent events, or what is like one."""

    async def __anext__(self) -> str: ...

    async def aclose(self) -> None:
        """Abort the generation if it still runs."""


Answer = bytes | Response | EventSource
"""A JSON document, a response of another kind (embeddings as bytes), or server-sent events ready to be sent. The
events raise APIError where the answer fails."""


class ServingLayer(Protocol):
    async def answer(self, path: str, body: dict[str, Any], request: Request) -> Answer:
        """Do what the endpoint `path` does. Raises APIError. What it learns goes to the notes of `request`."""

    def has_first_token(self, request: Request) -> bool:
        """Whether the engine has begun to answer what `answer` was called with for `request`."""

    async def models(self) -> dict[str, Any]:
        """OpenAI's list of models."""

    def known_fields(self, path: str) -> frozenset[str]:
        """Fields that the request of the endpoint `path` may have."""

    def schemas(self) -> Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """JSON schemas of request and response for each path that `answer` takes."""
