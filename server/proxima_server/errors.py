"""Every error a client can see, in the shape of OpenAI's API.

    {"error": {"message": "...", "type": "...", "param": "..." | null, "code": "..."}}

`code` is always a string from :class:`ErrorCode` and stable; `message` is for people and may change. Foreign errors
(FastAPI, pydantic, vLLM) are translated into :class:`APIError` where they enter our code.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proxima_server.observability.record import current
from proxima_server.request_id import current_request_id

MAX_MESSAGE_CHARS = 2000
"""Longest message sent: some validation errors quote the whole input."""
MAX_PARAM_CHARS = 200

CLIENT_CLOSED_REQUEST = 499

_logger = logging.getLogger(__name__)


class ErrorCode(StrEnum):
    INVALID_HTTP = "invalid_http"
    INVALID_JSON = "invalid_json"
    MISSING_REQUIRED_PARAMETER = "missing_required_parameter"
    UNKNOWN_PARAMETER = "unknown_parameter"
    UNSUPPORTED_PARAMETER = "unsupported_parameter"
    INVALID_VALUE = "invalid_value"
    NOT_SUPPORTED = "not_supported"
    """The served model, or vLLM, cannot do what is asked."""
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    INVALID_API_KEY = "invalid_api_key"
    PERMISSION_DENIED = "permission_denied"
    MODEL_NOT_FOUND = "model_not_found"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    REQUEST_TIMEOUT = "request_timeout"
    """The client was too slow to send its request."""
    CONFLICT = "conflict"
    REQUEST_TOO_LARGE = "request_too_large"
    INVALID_CONTENT_TYPE = "invalid_content_type"
    UNSUPPORTED_CONTENT_ENCODING = "unsupported_content_encoding"
    RATE_LIMIT_EXCEEDED = "rate_limit_exceeded"
    """This client asked for more than its key allows."""
    QUEUE_FULL = "queue_full"
    """All clients together ask for more than is served in time."""
    HEADERS_TOO_LARGE = "headers_too_large"
    CLIENT_CLOSED_REQUEST = "client_closed_request"
    INTERNAL_ERROR = "internal_error"
    ENGINE_OVERLOADED = "engine_overloaded"
    ENGINE_UNAVAILABLE = "engine_unavailable"
    SERVER_DRAINING = "server_draining"
    DEADLINE_EXCEEDED = "deadline_exceeded"


@dataclass(frozen=True)
class ErrorKind:
    status: int
    type: str
    retry: bool = False
    """Whether the same request may succeed later: what `x-should-retry` tells OpenAI's clients."""


_INVALID_REQUEST = "invalid_request_error"
_UNAVAILABLE = "service_unavailable_error"

KINDS: Mapping[ErrorCode, ErrorKind] = {
    ErrorCode.INVALID_HTTP: ErrorKind(400, _INVALID_REQUEST),
    ErrorCode.INVALID_JSON: ErrorKind(400, _INVALID_REQUEST),
    ErrorCode.MISSING_REQUIRED_PARAMETER: ErrorKind(400, _INVALID_REQUEST),
    ErrorCode.UNKNOWN_PARAMETER: ErrorKind(400, _INVALID_REQUEST),
    ErrorCode.UNSUPPORTED_PARAMETER: ErrorKind(400, _INVALID_REQUEST),
    ErrorCode.INVALID_VALUE: ErrorKind(400, _INVALID_REQUEST),
    # Not 501: OpenAI's clients retry each 5xx, and no retry makes a model do what it cannot.
    ErrorCode.NOT_SUPPORTED: ErrorKind(400, _INVALID_REQUEST),
    ErrorCode.CONTEXT_LENGTH_EXCEEDED: ErrorKind(400, _INVALID_REQUEST),
    ErrorCode.INVALID_API_KEY: ErrorKind(401, "authentication_error"),
    ErrorCode.PERMISSION_DENIED: ErrorKind(403, "permission_error"),
    ErrorCode.MODEL_NOT_FOUND: ErrorKind(404, _INVALID_REQUEST),
    ErrorCode.NOT_FOUND: ErrorKind(404, _INVALID_REQUEST),
    ErrorCode.METHOD_NOT_ALLOWED: ErrorKind(405, _INVALID_REQUEST),
    ErrorCode.REQUEST_TIMEOUT: ErrorKind(408, _INVALID_REQUEST, retry=True),
    ErrorCode.CONFLICT: ErrorKind(409, _INVALID_REQUEST),
    ErrorCode.REQUEST_TOO_LARGE: ErrorKind(413, _INVALID_REQUEST),
    ErrorCode.INVALID_CONTENT_TYPE: ErrorKind(415, _INVALID_REQUEST),
    ErrorCode.UNSUPPORTED_CONTENT_ENCODING: ErrorKind(415, _INVALID_REQUEST),
    ErrorCode.RATE_LIMIT_EXCEEDED: ErrorKind(429, "rate_limit_error", retry=True),
    ErrorCode.QUEUE_FULL: ErrorKind(429, "rate_limit_error", retry=True),
    ErrorCode.HEADERS_TOO_LARGE: ErrorKind(431, _INVALID_REQUEST),
    ErrorCode.CLIENT_CLOSED_REQUEST: ErrorKind(CLIENT_CLOSED_REQUEST, _INVALID_REQUEST),
    ErrorCode.INTERNAL_ERROR: ErrorKind(500, "server_error", retry=True),
    ErrorCode.ENGINE_OVERLOADED: ErrorKind(503, _UNAVAILABLE, retry=True),
    ErrorCode.ENGINE_UNAVAILABLE: ErrorKind(503, _UNAVAILABLE, retry=True),
    ErrorCode.SERVER_DRAINING: ErrorKind(503, _UNAVAILABLE, retry=True),
    # Not to be retried: who set a deadline has no time left for another attempt.
    ErrorCode.DEADLINE_EXCEEDED: ErrorKind(504, "timeout_error"),
}

# What an HTTP status means when nothing more precise is known about the error.
_CODE_OF_STATUS: Mapping[int, ErrorCode] = {
    401: ErrorCode.INVALID_API_KEY,
    403: ErrorCode.PERMISSION_DENIED,
    404: ErrorCode.NOT_FOUND,
    405: ErrorCode.METHOD_NOT_ALLOWED,
    408: ErrorCode.REQUEST_TIMEOUT,
    409: ErrorCode.CONFLICT,
    413: ErrorCode.REQUEST_TOO_LARGE,
    415: ErrorCode.INVALID_CONTENT_TYPE,
    429: ErrorCode.RATE_LIMIT_EXCEEDED,
    431: ErrorCode.HEADERS_TOO_LARGE,
    503: ErrorCode.ENGINE_OVERLOADED,
    504: ErrorCode.DEADLINE_EXCEEDED,
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
        self.message = _bounded(message, MAX_MESSAGE_CHARS)
        self.param = None if param is None else _bounded(param, MAX_PARAM_CHARS)
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

    def response(self, about: Mapping[str, str] | None = None) -> Response:
        """The error as a response, with what else its body is to say."""
        current().error_code = self.code.value
        headers = {"x-should-retry": str(KINDS[self.code].retry).lower(), **self.headers}
        return JSONResponse({**(about or {}), **self.body()}, status_code=self.status, headers=headers)

    def event(self) -> bytes:
        """The error as one server-sent event."""
        return b"data: " + json.dumps(self.body()).encode() + b"\n\n"


def internal_error() -> APIError:
    """What a client hears about a bug: nothing of its details, which may hold other people's data."""
    told = current_request_id.get()
    where = f" under request id {told}" if told else ""
    return APIError(ErrorCode.INTERNAL_ERROR, f"Internal error; the server's log has the details{where}")


def code_of_status(status: int) -> ErrorCode:
    """The most general code for an HTTP status."""
    general = ErrorCode.INVALID_VALUE if status < 500 else ErrorCode.INTERNAL_ERROR
    return _CODE_OF_STATUS.get(status, general)


def install(app: FastAPI) -> None:
    """Make `app` answer every error in the shape above. Adds middleware: what is added later is outside of it."""
    app.add_exception_handler(APIError, _answer_api_error)
    app.add_exception_handler(HTTPException, _answer_http_exception)
    app.add_exception_handler(RequestValidationError, _answer_invalid_parameter)
    app.add_middleware(AnswerUnexpected)


class AnswerUnexpected:
    """A bug answers 500 in our shape, with its traceback in the log.

    A handler for `Exception` would sit outside of all middleware, and its answer would lack what they add.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def note_start(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, note_start)
        except Exception:
            if scope["type"] != "http" or started:
                # The server logs it and closes the connection, which tells the client that the answer is not whole.
                raise
            _logger.exception("unexpected error in %s %s", scope["method"], scope["path"])
            await internal_error().response()(scope, receive, send)


async def _answer_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, APIError)  # noqa: S101 - registered for this type only
    # Anthropic's clients look for the word, and take the rest as it is.
    about = {"type": "error"} if request.url.path.startswith("/v1/messages") else {}
    return error.response(about)


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


async def _answer_invalid_parameter(_request: Request, error: Exception) -> Response:
    """Of a parameter in the URL; bodies are validated elsewhere."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for this type only
    first = error.errors()[0]
    name = str(first["loc"][-1])
    message = f"Invalid '{name}': {first['msg']} (got {_bounded(repr(first.get('input')), MAX_PARAM_CHARS)})"
    return APIError(ErrorCode.INVALID_VALUE, message, param=name).response()


def _bounded(text: str, chars: int) -> str:
    """`text` as valid UTF-8 can carry it, cut to `chars`."""
    sendable = text[: chars + 1].encode(errors="replace").decode()
    return sendable if len(sendable) <= chars else sendable[: chars - 1] + "…"
