"""What the routes need from the engine's serving layer; :mod:`proxima_server.vllm_serving` is the real one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Protocol

from fastapi import Request

from proxima_server.errors import APIError

Answer = bytes | AsyncGenerator[str, None]
"""A JSON document, or server-sent events ready to be sent."""


class ServingLayer(Protocol):
    async def answer(self, path: str, body: dict[str, Any], request: Request) -> Answer:
        """Do what the endpoint `path` does. Raises APIError."""

    async def models(self) -> dict[str, Any]:
        """OpenAI's list of models."""

    def stream_error(self, event: str) -> APIError:
        """The error inside an error event of a stream from `answer`."""

    def known_fields(self, path: str) -> frozenset[str]:
        """Fields that the request of the endpoint `path` may have."""

    def schemas(self) -> Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """JSON schemas of request and response for each path that `answer` takes."""
