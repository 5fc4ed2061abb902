"""How a stream of each endpoint says that it failed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from proxima_server.errors import APIError

ErrorEvent = Callable[[APIError], bytes]


def error_event(path: str) -> ErrorEvent:
    """Frames an error as the protocol of the endpoint `path` does."""
    return _OF_PATH.get(path, APIError.event)


def _message_error(error: APIError) -> bytes:
    return _event({"type": "error", **error.body()})


def _response_error(error: APIError) -> bytes:
    """As OpenAI's clients look for it in any stream, and as the event of this one."""
    body: Mapping[str, Any] = error.body()
    return _event({**body["error"], "type": "error", **body})


def _line(error: APIError) -> bytes:
    return json.dumps(error.body()).encode() + b"\n"


def _event(data: Mapping[str, Any]) -> bytes:
    return f"event: error\ndata: {json.dumps(data)}\n\n".encode()


_OF_PATH: Mapping[str, ErrorEvent] = {
    "/v1/messages": _message_error,
    "/v1/responses": _response_error,
    "/generate": _line,
}
