"""Reading a request's JSON body.

Bodies are parsed by hand rather than by FastAPI, because the models that validate them are vLLM's and vLLM is
imported only while the engine loads, long after HTTP answers.
"""

from __future__ import annotations

import re
from typing import Any

from fastapi import Request
from pydantic_core import from_json
from starlette.requests import ClientDisconnect

from proxima_server.errors import APIError, ErrorCode
from proxima_server.observability.record import current
from proxima_server.shapes import unrepresentable


async def read_object(request: Request, *, check_content_type: bool = True) -> dict[str, Any]:
    """The JSON object in the body of `request`. Raises APIError."""
    _refuse_encoding(request)
    if check_content_type:
        _require_json(request)
    raw = await _read(request)
    try:
        # Bounds depth and length of numbers, and refuses what is no Unicode text (a lone surrogate).
        body = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise APIError(ErrorCode.INVALID_JSON, f"The request body is not valid JSON: {error}") from error
    if not isinstance(body, dict):
        raise APIError(ErrorCode.INVALID_JSON, "The request body must be a JSON object")
    path = unrepresentable(body) if _HUGE_NUMBER.search(raw) else None
    if path is not None:
        raise APIError(ErrorCode.INVALID_VALUE, f"Invalid '{path}': the number is too large", param=path)
    current().note_body(body)
    return body


_HUGE_NUMBER = re.compile(rb"\d{19}|[eE]\+?\d{3}")
"""What a number beyond 64 bits has in it; the parser takes such numbers, the engine does not."""


def _refuse_encoding(request: Request) -> None:
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise APIError(
            ErrorCode.UNSUPPORTED_CONTENT_ENCODING,
            f"Send the body as it is: Content-Encoding '{encoding}' is not supported",
            headers={"Accept-Encoding": "identity"},
        )


def _require_json(request: Request) -> None:
    content_type = request.headers.get("content-type", "")
    if content_type.split(";", maxsplit=1)[0].strip().lower() != "application/json":
        shown = f"'{content_type}'" if content_type else "none"
        raise APIError(
            ErrorCode.INVALID_CONTENT_TYPE, f"Send the header 'Content-Type: application/json' (got {shown})"
        )


async def _read(request: Request) -> bytes:
    try:
        return await request.body()
    except ClientDisconnect as error:
        raise APIError(ErrorCode.CLIENT_CLOSED_REQUEST, "The client went away") from error
