"""Every error a client can see, in the shape of OpenAI's API.

    {"error": {"message": "...", "type": "...", "param": "..." | null, "code": "..."}}

`code` is always a string from :class:`ErrorCode` and stable; `message` is for people and may change. Foreign errors
(FastAPI, pydantic, vLLM) are translated into :class:`APIError` where they enter our code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

MAX_MESSAGE_CHARS = 2000
"""Longest message sent: some validation errors quote the whole input."""

CLIENT_CLOSED_REQUEST = 499


class ErrorCode(StrEnum):
    INVALID_JSON = "invalid_json"
    INVALID_CONTENT_TYPE = "invalid_content_type"
    MISSING_REQUIRED_PARAMETER = "missing_required_parameter"
    UNKNOWN_PARAMETER = "unknown_parameter"
    INVALID_VALUE = "invalid_value"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    REQUEST_TOO_LARGE = "request_too_large"
    MODEL_NOT_FOUND = "model_not_found"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    NOT_SUPPORTED = "not_supported"
    CONFLICT = "conflict"
    CLIENT_CLOSED_REQUEST = "client_closed_request"
    ENGINE_OVERLOADED = "engine_overloaded"
    ENGINE_UNAVAILABLE = "engine_unavailable"
    INTERNAL_ERROR = "internal_error"


@dataclass(frozen=True)
class ErrorKind:
    status: int
    type: str


_INVALID_REQUEST = "invalid_request_error"
_UNAVAILABLE = "service_unavailable_error"

KINDS: Mapping[ErrorCode, ErrorKind] = {
    ErrorCode.INVALID_JSON: ErrorKind(400, _INVALID_REQUEST),
    ErrorCode.INVALID_CONTENT_TYPE: ErrorKind(415, _INVALID_REQUEST),
    ErrorCode.MISSING_REQUIRED_PARAMETER: ErrorKind(400, _INVALID_REQUEST),
    ErrorCode.UNKNOWN_PARAMETER: ErrorKind(400, _INVALID_REQUEST),
    ErrorCode.INVALID_VALUE: ErrorKind(400, _INVALID_REQUEST),
    ErrorCode.CONTEXT_LENGTH_EXCEEDED: ErrorKind(400, _INVALID_REQUEST),
    ErrorCode.REQUEST_TOO_LARGE: ErrorKind(413, _INVALID_REQUEST),
    ErrorCode.MODEL_NOT_FOUND: ErrorKind(404, _INVALID_REQUEST),
    ErrorCode.NOT_FOUND: ErrorKind(404, _INVALID_REQUEST),
    ErrorCode.METHOD_NOT_ALLOWED: ErrorKind(405, _INVALID_REQUEST),
    ErrorCode.NOT_SUPPORTED: ErrorKind(501, _INVALID_REQUEST),
    ErrorCode.CONFLICT: ErrorKind(409, _INVALID_REQUEST),
    ErrorCode.CLIENT_CLOSED_REQUEST: ErrorKind(CLIENT_CLOSED_REQUEST, _INVALID_REQUEST),
    ErrorCode.ENGINE_OVERLOADED: ErrorKind(503, _UNAVAILABLE),
    ErrorCode.ENGINE_UNAVAILABLE: ErrorKind(503, _UNAVAILABLE),
    ErrorCode.INTERNAL_ERROR: ErrorKind(500, "server_error"),
}

# What an HTTP status means when nothing more precise is known about the error.
_CODE_OF_STATUS: Mapping[int, ErrorCode] = {
    400: ErrorCode.INVALID_VALUE,
    404: ErrorCode.NOT_FOUND,
    405: ErrorCode.METHOD_NOT_ALLOWED,
    409: ErrorCode.CONFLICT,
    413: ErrorCode.REQUEST_TOO_LARGE,
    415: ErrorCode.INVALID_CONTENT_TYPE,
    422: ErrorCode.INVALID_VALUE,
    501: ErrorCode.NOT_SUPPORTED,
    503: ErrorCode.ENGINE_OVERLOADED,
}


class APIError(Exception):
    """One error of the taxonomy, ready to be sent as a response or as the last event of a stream."""

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = _bounded(message)
        self.param = param
        self.headers = dict(headers or {})

    @property
    def status(self) -> int:
        return KINDS[self.code].status

    def body(self) -> dict[str, dict[str, str | None]]:
        return {
            "error": {
                "message": self.message,
                "type": KINDS[self.code].type,
                "param": self.param,
                "code": self.code.value,
            }
        }

    def response(self) -> Response:
        return JSONResponse(self.body(), status_code=self.status, headers=self.headers)

    def event(self) -> bytes:
        """The error as one server-sent event."""
        return b"data: " + json.dumps(self.body()).encode() + b"\n\n"


def internal_error() -> APIError:
    """What a client hears about a bug: nothing of its details, which may hold other people's data."""
    return APIError(ErrorCode.INTERNAL_ERROR, "Internal error; the server's log has the details")


def code_of_status(status: int) -> ErrorCode:
    """The most general code for an HTTP status."""
    general = ErrorCode.INVALID_VALUE if status < 500 else ErrorCode.INTERNAL_ERROR
    return _CODE_OF_STATUS.get(status, general)


def install(app: FastAPI) -> None:
    """Make `app` answer every error in the shape above."""
    app.add_exception_handler(APIError, _answer_api_error)
    app.add_exception_handler(HTTPException, _answer_http_exception)
    # Starlette answers with this and raises on, so that the server logs the traceback.
    app.add_exception_handler(Exception, _answer_unexpected)


async def _answer_api_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, APIError)  # noqa: S101 - registered for this type only
    return error.response()


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for this type only
    code = code_of_status(error.status_code)
    message = str(error.detail)
    if code is ErrorCode.NOT_FOUND:
        message = f"There is no {request.method} {request.url.path} here; /docs lists the endpoints"
    elif code is ErrorCode.METHOD_NOT_ALLOWED:
        allowed = (error.headers or {}).get("Allow", "another method")
        message = f"{request.url.path} does not answer {request.method}, use {allowed}"
    return APIError(code, message, headers=error.headers).response()


async def _answer_unexpected(_request: Request, _error: Exception) -> Response:
    return internal_error().response()


def _bounded(message: str) -> str:
    if len(message) <= MAX_MESSAGE_CHARS:
        return message
    return message[: MAX_MESSAGE_CHARS - 1] + "…"
