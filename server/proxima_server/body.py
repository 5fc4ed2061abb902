"""Reading a request's JSON body, and saying precisely what is wrong with it.

Bodies are parsed by hand rather than by FastAPI, because the models that validate them are vLLM's and vLLM is
imported only while the engine loads, long after HTTP answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from fastapi import Request
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect

from proxima_server.errors import APIError, ErrorCode

MAX_BODY_BYTES = 64 * 1024 * 1024
"""Roomy for prompts with embedded images, small enough that one client cannot fill the memory."""

_SHOWN_VALUE_CHARS = 80


async def read_object(request: Request, *, check_content_type: bool = True) -> dict[str, Any]:
    """The JSON object in the body of `request`. Raises APIError."""
    if check_content_type:
        _require_json(request)
    try:
        text = (await _read(request)).decode()
        body = json.loads(text, parse_constant=_refuse_constant)
    # json.loads raises plain ValueError for integers of absurd length, RecursionError for absurd nesting.
    except (ValueError, RecursionError) as error:
        raise APIError(ErrorCode.INVALID_JSON, f"The request body is not valid JSON: {error}") from error
    if not isinstance(body, dict):
        raise APIError(ErrorCode.INVALID_JSON, "The request body must be a JSON object")
    return body


def validation_error(error: ValidationError, body: Mapping[str, Any]) -> APIError:
    """Name the field, the value and the rule of the most telling of pydantic's errors."""
    details = error.errors(include_url=False)
    # A value that fits no member of a union yields errors for each member. The deepest ones belong to the member
    # that fits best, and a literal that differs (`role`) only says that another member was meant.
    telling = min(
        details, key=lambda detail: (-len(_path(detail, body)), detail["type"] in ("literal_error", "missing"))
    )
    path = _path(telling, body)
    name = _dotted(path) or "body"
    if telling["type"] == "missing":
        return APIError(ErrorCode.MISSING_REQUIRED_PARAMETER, f"Missing required parameter: '{name}'", param=name)
    value = _shown(telling["input"])
    return APIError(ErrorCode.INVALID_VALUE, f"Invalid '{name}': {telling['msg']} (got {value})", param=name)


def _require_json(request: Request) -> None:
    content_type = request.headers.get("content-type", "")
    if content_type.split(";", maxsplit=1)[0].strip().lower() != "application/json":
        shown = f"'{content_type}'" if content_type else "none"
        raise APIError(
            ErrorCode.INVALID_CONTENT_TYPE, f"Send the header 'Content-Type: application/json' (got {shown})"
        )


async def _read(request: Request) -> bytes:
    chunks = bytearray()
    try:
        async for chunk in request.stream():
            chunks += chunk
            if len(chunks) > MAX_BODY_BYTES:
                raise APIError(ErrorCode.REQUEST_TOO_LARGE, f"The request body is larger than {MAX_BODY_BYTES} bytes")
    except ClientDisconnect as error:
        raise APIError(ErrorCode.CLIENT_CLOSED_REQUEST, "The client went away") from error
    return bytes(chunks)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _path(detail: ErrorDetails, body: Mapping[str, Any]) -> list[str | int]:
    """The part of pydantic's location that exists in `body`: the rest names union members, not fields."""
    path: list[str | int] = []
    here: Any = body
    last = len(detail["loc"]) - 1
    for position, part in enumerate(detail["loc"]):
        is_key = isinstance(part, str) and isinstance(here, Mapping) and part in here
        is_index = isinstance(part, int) and _is_array(here) and part < len(here)
        if is_key or is_index:
            here = here[part]
            path.append(part)
        elif detail["type"] == "missing" and position == last:
            path.append(part)
    return path


def _is_array(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _dotted(path: Sequence[str | int]) -> str:
    name = ""
    for part in path:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
    return name


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_VALUE_CHARS else text[: _SHOWN_VALUE_CHARS - 1] + "…"
