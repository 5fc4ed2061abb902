"""vLLM's errors as errors of our taxonomy: its codes are HTTP statuses, ours are words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from jinja2 import TemplateError
from vllm.entrypoints.serve import create_error_response
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.exceptions import GracefulHTTPError, RetryableRequestError, VLLMError
from vllm.v1.engine.exceptions import EngineDeadError

from proxima_server import media
from proxima_server.errors import APIError, ErrorCode, code_of_status, internal_error

# Besides its own errors vLLM raises these for requests it cannot serve; anything else is a bug and stays one.
REQUEST_ERRORS = (VLLMError, ValueError, TypeError, OverflowError, NotImplementedError, TemplateError)

_CONTEXT_LENGTH = re.compile(r"maximum context length|max_model_len|maximum model length")
_UNKNOWN_MODEL = re.compile(r"[Tt]he model .* does not exist")
# Where in its source xgrammar noticed.
_SOURCE_NOTE = re.compile(r"\[\d\d:\d\d:\d\d\] \S+:\d+: ")
# vLLM repeats in the message what `param` says.
_PARAMETER_NOTE = re.compile(r" \((?:parameter|value)=.*\)$", re.DOTALL)
_WORD = re.compile(r"[a-z][a-z0-9_]*")
# vLLM's own names of what clients know under another.
_PROMPT_PARAMS = ("messages", "prompt", "input")
_GRAMMAR_PARAMS = ("response_format", "structured_outputs", "text", "output_config", "tools")
_LOGPROBS_PARAMS = ("top_logprobs", "logprobs")
_OUTPUT_PARAMS = ("max_completion_tokens", "max_output_tokens", "max_tokens")


class ErrorTranslator:
    """`dead` says why the engine is dead, and None while it lives."""

    def __init__(self, dead: Callable[[], str | None]) -> None:
        self._dead = dead

    def exception(self, error: Exception, body: Mapping[str, Any]) -> APIError:
        """Our error for an exception of vLLM, raised for the request `body`."""
        if isinstance(error, EngineDeadError):
            return self._engine_died()
        if isinstance(error, RetryableRequestError):
            return APIError(ErrorCode.ENGINE_UNAVAILABLE, str(error))
        headers = {"Retry-After": "1"} if isinstance(error, GracefulHTTPError) else None
        return self.response(create_error_response(error), body, headers)

    def response(
        self, response: ErrorResponse, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> APIError:
        """Our error for an error response of vLLM."""
        error = response.error
        code = ErrorCode.NOT_SUPPORTED if error.code == HTTPStatus.NOT_IMPLEMENTED else code_of_status(error.code)
        message = _SOURCE_NOTE.sub("", _PARAMETER_NOTE.sub("", error.message))
        param = _param(error.param, message, body)
        if param in _LOGPROBS_PARAMS:
            message = message.replace("sample logprobs", param)
        if code is ErrorCode.NOT_FOUND and (param == "model" or _UNKNOWN_MODEL.search(message)):
            code, param = ErrorCode.MODEL_NOT_FOUND, "model"
        elif code is ErrorCode.INVALID_VALUE and _CONTEXT_LENGTH.search(message):
            code = ErrorCode.CONTEXT_LENGTH_EXCEEDED
        elif code is ErrorCode.INTERNAL_ERROR:
            return self._engine_died() if self._dead() is not None else internal_error()
        return APIError(code, message, param=param, headers=headers)

    def _engine_died(self) -> APIError:
        cause = self._dead() or "the engine died"
        return APIError(
            ErrorCode.ENGINE_UNAVAILABLE, f"Requests cannot be served: {cause}", headers={"Retry-After": "30"}
        )


def _param(param: str | None, message: str, body: Mapping[str, Any]) -> str | None:
    """The parameter an error of vLLM is about, by the name that the client used."""
    if param is None:
        words = _WORD.findall(message.lower())
        # It is the model that is not multimodal, but the prompt that has to change.
        candidates = [*_PROMPT_PARAMS] if "multimodal" in words else []
        candidates += [word for word in words if "_" in word]
        candidates += _GRAMMAR_PARAMS if {"schema", "grammar", "regex"} & {*words} else ()
        candidates += ["chat_template"] if {"chat", "template"} <= {*words} else []
        candidates += words
        candidates += _PROMPT_PARAMS if {"conversation", "role", "roles", "vocabulary"} & {*words} else ()
        return next((word for word in candidates if word in body), None)
    if param in ("input_text", "input_tokens"):
        return next((name for name in _PROMPT_PARAMS if name in body), param)
    for names in (_OUTPUT_PARAMS, _LOGPROBS_PARAMS):
        if param in names:
            return next((name for name in names if name in body), param)
    if param == "response_id":
        return "previous_response_id"
    return media.named(param, message, body) or param
