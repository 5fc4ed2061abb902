"""Reading a request's JSON body, and saying precisely what is wrong with it.

Bodies are parsed by hand rather than by FastAPI, because the models that validate them are vLLM's and vLLM is
imported only while the engine loads, long after HTTP answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request
from pydantic import ValidationError
from pydantic_core import ErrorDetails, from_json
from starlette.requests import ClientDisconnect

from proxima_server.errors import APIError, ErrorCode
from proxima_server.observability.record import current
from proxima_server.shapes import unrepresentable

_SHOWN_VALUE_CHARS = 80


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


def validation_error(error: ValidationError, body: Mapping[str, Any]) -> APIError:
    """The error of our taxonomy for pydantic's."""
    return invalid(error.errors(include_url=False), body)


def invalid(details: Sequence[ErrorDetails], body: Mapping[str, Any]) -> APIError:
    """Name the field, the value and the rule of the most telling of pydantic's errors."""
    # A value that fits no member of a union yields errors for each member. The deepest ones belong to the member
    # that fits best, and a literal that differs (`role`) only says that another member was meant.
    telling = min(
        details,
        key=lambda detail: (
            -len(_path(detail, body)),
            detail["type"] in ("literal_error", "missing"),
            # A value of the right type tells which member was meant.
            detail["type"].endswith("_type"),
        ),
    )
    path = _path(telling, body)
    name = _dotted(path)
    param = name or None
    if telling["type"] == "missing":
        return APIError(ErrorCode.MISSING_REQUIRED_PARAMETER, f"Missing required parameter: '{name}'", param=param)
    rule = _rule(telling["msg"])
    if not path:
        return APIError(ErrorCode.INVALID_VALUE, f"Invalid request: {rule}", param=param)
    return APIError(
        ErrorCode.INVALID_VALUE, f"Invalid '{name}': {rule} (got {_shown(_value(path, body))})", param=param
    )


_HUGE_NUMBER = re.compile(rb"\d{19}|[eE]\+?\d{3}")
"""What a number beyond 64 bits has in it; the parser takes such numbers, the engine does not."""

_PLAIN_WORDS = {
    "Input should be": "it must be",
    "a valid dictionary": "an object",
    "a valid list": "an array",
    "a valid array": "an array",
    "iterable": "an array",
    "a valid string": "a string",
    "a valid integer": "an integer",
    "a valid number": "a number",
    "a valid boolean": "a boolean",
    "Value error, ": "",
    "Assertion failed, ": "",
    "List should have": "it must have",
    "String should have": "it must have",
    "String should match": "it must match",
    "Dictionary should have": "it must have",
}


def _rule(message: str) -> str:
    """pydantic's message in the words of JSON."""
    for theirs, ours in _PLAIN_WORDS.items():
        message = message.replace(theirs, ours)
    return message


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


def _value(path: Sequence[str | int], body: Any) -> Any:
    for part in path:
        body = body[part]
    return body


def _shown(value: object) -> str:
    """`value` as JSON, cut."""
    if isinstance(value, str):
        value = value[:_SHOWN_VALUE_CHARS]
    elif isinstance(value, Mapping | list):
        return "an object" if isinstance(value, Mapping) else "an array"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_VALUE_CHARS else text[: _SHOWN_VALUE_CHARS - 1] + "…"
