"""vLLM's serving layer behind our routes: the only module of the server that imports vLLM.

Importing it takes seconds, so nothing imports it before the engine is ready. vLLM renders chats, parses tools, builds
responses and events; here its requests are validated and its errors become errors of our taxonomy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from jinja2 import TemplateError
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.datastructures import State
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest, ChatCompletionResponse
from vllm.entrypoints.openai.completion.protocol import CompletionRequest, CompletionResponse
from vllm.entrypoints.serve import create_error_response
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.tokenize.protocol import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeChatRequest,
    TokenizeCompletionRequest,
    TokenizeResponse,
)
from vllm.exceptions import GracefulHTTPError, VLLMError
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager
from vllm.v1.engine.exceptions import EngineDeadError

from proxima_engine.runtime import EngineRuntime
from proxima_server.body import validation_error
from proxima_server.errors import APIError, ErrorCode, code_of_status, internal_error
from proxima_server.schema_limits import check_repetitions
from proxima_server.serving import Answer

# Besides its own errors vLLM raises these for requests it cannot serve; anything else is a bug and stays one.
REQUEST_ERRORS = (VLLMError, ValueError, TypeError, OverflowError, NotImplementedError, TemplateError)

SCHEMA_REF = "#/components/schemas/{model}"

_CONTEXT_LENGTH = re.compile(r"maximum context length|greater than max_model_len")
# vLLM repeats in the message what `param` says.
_PARAMETER_NOTE = re.compile(r" \(parameter=[^()]*\)$")


@dataclass(frozen=True)
class _Endpoint:
    request: Callable[[Mapping[str, Any]], type[BaseModel]]
    """The model of a request, chosen by its body."""
    requests: tuple[type[BaseModel], ...]
    response: type[BaseModel]
    handler: str
    """Attribute of vLLM's application state."""
    method: str


def _always(model: type[BaseModel]) -> Callable[[Mapping[str, Any]], type[BaseModel]]:
    return lambda _body: model


ENDPOINTS: Mapping[str, _Endpoint] = {
    "/v1/chat/completions": _Endpoint(
        _always(ChatCompletionRequest),
        (ChatCompletionRequest,),
        ChatCompletionResponse,
        "openai_serving_chat",
        "create_chat_completion",
    ),
    "/v1/completions": _Endpoint(
        _always(CompletionRequest),
        (CompletionRequest,),
        CompletionResponse,
        "openai_serving_completion",
        "create_completion",
    ),
    "/tokenize": _Endpoint(
        lambda body: TokenizeChatRequest if "messages" in body else TokenizeCompletionRequest,
        (TokenizeCompletionRequest, TokenizeChatRequest),
        TokenizeResponse,
        "serving_tokenization",
        "create_tokenize",
    ),
    "/detokenize": _Endpoint(
        _always(DetokenizeRequest),
        (DetokenizeRequest,),
        DetokenizeResponse,
        "serving_tokenization",
        "create_detokenize",
    ),
}


class VLLMServing:
    """Implements :class:`proxima_server.serving.ServingLayer` on a running engine."""

    def __init__(self, runtime: EngineRuntime, state: State) -> None:
        self._runtime = runtime
        self._state = state

    async def answer(self, path: str, body: dict[str, Any], request: Request) -> Answer:
        endpoint = ENDPOINTS[path]
        handler = getattr(self._state, endpoint.handler, None)
        if handler is None:
            raise APIError(ErrorCode.NOT_SUPPORTED, f"The served model does not support {path}")
        check_repetitions(body)
        try:
            parsed = endpoint.request(body).model_validate(body)
            result = await getattr(handler, endpoint.method)(parsed, request)
        except ValidationError as error:
            raise validation_error(error, body) from error
        except EngineDeadError as error:
            raise self._engine_died() from error
        except REQUEST_ERRORS as error:
            raise self._translate(create_error_response(error), error) from error
        if isinstance(result, ErrorResponse):
            raise self._translate(result)
        return result.model_dump_json().encode() if isinstance(result, BaseModel) else result

    async def models(self) -> dict[str, Any]:
        listed: dict[str, Any] = (await self._state.openai_serving_models.show_available_models()).model_dump()
        return listed

    def stream_error(self, event: str) -> APIError:
        return self._translate(ErrorResponse.model_validate(json.loads(event.removeprefix("data: "))))

    def known_fields(self, path: str) -> frozenset[str]:
        return frozenset(name for model in ENDPOINTS[path].requests for name in model.model_fields)

    def schemas(self) -> Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]]:
        return {path: (_schema(*each.requests), _schema(each.response)) for path, each in ENDPOINTS.items()}

    def _translate(self, response: ErrorResponse, cause: Exception | None = None) -> APIError:
        """Our error for vLLM's: its codes are HTTP statuses, ours are words."""
        error = response.error
        code = code_of_status(error.code)
        if code is ErrorCode.NOT_FOUND and error.param == "model":
            code = ErrorCode.MODEL_NOT_FOUND
        elif code is ErrorCode.INVALID_VALUE and _CONTEXT_LENGTH.search(error.message):
            code = ErrorCode.CONTEXT_LENGTH_EXCEEDED
        elif code is ErrorCode.INTERNAL_ERROR:
            return self._engine_died() if self._state.engine_client.errored else internal_error()
        headers = {"Retry-After": "1"} if isinstance(cause, GracefulHTTPError) else None
        return APIError(code, _PARAMETER_NOTE.sub("", error.message), param=error.param, headers=headers)

    def _engine_died(self) -> APIError:
        cause = self._runtime.failure or "the engine died"
        return APIError(
            ErrorCode.ENGINE_UNAVAILABLE, f"Requests cannot be served: {cause}", headers={"Retry-After": "30"}
        )


async def load(runtime: EngineRuntime) -> VLLMServing:
    """Build vLLM's serving layer on the engine of `runtime`, which must be ready."""
    args = runtime.args
    if args.tool_parser_plugin:
        ToolParserManager.import_tool_parser(args.tool_parser_plugin)
    if args.reasoning_parser_plugin:
        ReasoningParserManager.import_reasoning_parser(args.reasoning_parser_plugin)
    state = State()
    client = runtime.client
    await init_app_state(client, state, args, await client.get_supported_tasks())
    return VLLMServing(runtime, state)


def _schema(*models: type[BaseModel]) -> Mapping[str, Any]:
    schemas = [TypeAdapter(model).json_schema(ref_template=SCHEMA_REF) for model in models]
    if len(schemas) == 1:
        return schemas[0]
    shared = {name: each for schema in schemas for name, each in schema.pop("$defs", {}).items()}
    return {"anyOf": schemas, "$defs": shared}
