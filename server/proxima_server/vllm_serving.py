"""vLLM's serving layer behind our routes.

Importing it takes seconds, so nothing imports it before the engine is ready. vLLM renders chats, parses tools, builds
responses and events; here its requests are validated and its errors become errors of our taxonomy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.datastructures import State
from starlette.responses import Response
from vllm.entrypoints.anthropic.protocol import AnthropicCountTokensResponse, AnthropicMessagesResponse
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionResponse
from vllm.entrypoints.openai.completion.protocol import CompletionResponse
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.tokenize.protocol import DetokenizeRequest
from vllm.renderers.chat_utils import MM_PARSER_MAP
from vllm.tool_parsers import ToolParserManager

from proxima_engine.runtime import EngineRuntime
from proxima_server import hints, media, messages, parameters, schemas, streaming
from proxima_server.answer_notes import AnswerNotes, notes_of
from proxima_server.errors import APIError, ErrorCode
from proxima_server.observability.record import RequestRecord, current
from proxima_server.schema_limits import check_repetitions
from proxima_server.serving import Answer
from proxima_server.shapes import mismatches
from proxima_server.validation import invalid, validation_error, wrong
from proxima_server.vllm_endpoints import ENDPOINTS, Endpoint
from proxima_server.vllm_errors import REQUEST_ERRORS, ErrorTranslator
from proxima_server.vllm_grammars import can_constrain, check_grammar

_logger = logging.getLogger(__name__)

# Of Python, raised where vLLM's validators meet a combination of values that nobody thought of.
_CONFUSED = (AttributeError, LookupError, AssertionError, RecursionError)

_CAUSE_S = 1.0
"""How long a request of an engine that died waits for the cause."""

# All that vLLM's handlers read from headers and clients may say: the rest (priority, rank) is for the door to decide.
_PASSED_HEADERS = frozenset({b"traceparent", b"tracestate"})


class VLLMServing:
    """Implements :class:`proxima_server.serving.ServingLayer` on a running engine."""

    def __init__(self, runtime: EngineRuntime, state: State) -> None:
        self._runtime = runtime
        self._state = state
        self._errors = ErrorTranslator(self._cause_of_death)

    async def answer(self, path: str, body: dict[str, Any], request: Request) -> Answer:
        endpoint = ENDPOINTS[path]
        handler = getattr(self._state, endpoint.handler, None)
        if handler is None:
            raise APIError(ErrorCode.NOT_SUPPORTED, f"The served model does not support {path}")
        record, notes = current(), notes_of(request)
        try:
            parsed = self._parse(endpoint, body, request)
            result = await self._unknown_model(handler, parsed)
            result = result or await getattr(handler, endpoint.method)(parsed, _shown_to_vllm(request))
        except ValidationError as error:
            raise validation_error(error, body) from error
        except REQUEST_ERRORS as error:
            raise await self._exception(record.failure or error, body) from error
        if isinstance(result, ErrorResponse):
            raise await self._failed(result, body, record)
        if isinstance(result, BaseModel):
            return _document(result, notes)
        return result if isinstance(result, Response) else self._stream(path, result, body, notes.service_tier)

    def has_first_token(self, request: Request) -> bool:
        # vLLM notes its id of the request there; each prompt of it has an id that begins with this one.
        noted = getattr(request.state, "request_metadata", None)
        states = self._state.engine_client.output_processor.request_states.values()
        return noted is not None and any(
            not state.is_prefilling for state in states if state.external_req_id.startswith(noted.request_id)
        )

    async def models(self) -> dict[str, Any]:
        listed: dict[str, Any] = (await self._state.openai_serving_models.show_available_models()).model_dump()
        for card in listed["data"]:
            # Where a model lies on this machine is nobody's business.
            if (card["root"] or "").startswith(("/", ".", "~")):
                card["root"] = card["id"]
        return listed

    def known_fields(self, path: str) -> frozenset[str]:
        return frozenset(name for model in ENDPOINTS[path].requests for name in model.model_fields)

    def schemas(self) -> Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]]:
        served = {path: each for path, each in ENDPOINTS.items() if getattr(self._state, each.handler, None)}
        return {path: each.schemas() for path, each in served.items()}

    def _parse(self, endpoint: Endpoint, body: dict[str, Any], request: Request) -> BaseModel:
        """The request as vLLM takes it. Raises APIError, ValidationError or what vLLM's validators raise."""
        model, notes = endpoint.request(body), notes_of(request)
        parameters.refuse_unsupported(body)
        self._check_prompt(endpoint, body)
        mismatched = mismatches(endpoint.shapes[model], body)
        if mismatched:
            raise invalid(mismatched, body)
        if model is DetokenizeRequest:
            self._check_tokens(body["tokens"])
        check_repetitions(body)
        schemas.check(body)
        check_grammar(body)
        schemas.constrain_forced_calls(body, can_constrain)
        without_effect = parameters.without_effect(body) + [name for name in self._inactive if body.get(name)]
        body.pop("request_id", None)
        served = parameters.tier_of(hints.hints_of(request).request_class)
        if body.pop(parameters.SERVICE_TIER, None) is not None:
            notes.service_tier = served
        if parameters.SERVICE_TIER in model.model_fields:
            body[parameters.SERVICE_TIER] = served
        if hints.FIELD in model.model_fields:
            hints.write(body, hints.hints_of(request))
        try:
            parsed = model.model_validate(body)
        except _CONFUSED as error:
            _logger.debug("vLLM's validators failed on a request", exc_info=True)
            raise APIError(ErrorCode.INVALID_VALUE, "Invalid request: its fields do not fit together") from error
        notes.ignored = without_effect + parameters.unknown(body, parsed)
        if notes.ignored and self._runtime.settings.server.strict_params:
            raise parameters.refused_ignored(notes.ignored[0])
        return parsed

    def _check_prompt(self, endpoint: Endpoint, body: Mapping[str, Any]) -> None:
        if self._reads_only:
            media.refuse(body)
        if "messages" not in body:
            return
        chat = self._chat if endpoint.any_role else None
        if chat is not None and body.get("chat_template") is not None:
            # A template of the request's own may know any role.
            chat = replace(chat, template_knows=lambda _role: True)
        messages.check(body["messages"], chat)

    async def _unknown_model(self, handler: Any, parsed: Any) -> ErrorResponse | None:
        """What vLLM says of a model that is not served. Asked this alone, it does not log an error of its own."""
        if not parsed.model:
            return None
        models = self._state.openai_serving_models
        if models.is_base_model(parsed.model) or parsed.model in models.lora_requests:
            return None
        refused: ErrorResponse | None = await handler._check_model(parsed)  # noqa: SLF001 - in the contract
        return refused

    def _check_tokens(self, tokens: list[int]) -> None:
        """Raises APIError for one that stands for nothing, of which vLLM makes an empty text."""
        client = self._state.engine_client
        # Each may have tokens that the other has not; with --skip-tokenizer-init there is no tokenizer.
        size = max(getattr(client.tokenizer, "max_token_id", -1) + 1, client.vllm_config.model_config.get_vocab_size())
        for index, token in enumerate(tokens):
            if token >= size:
                raise wrong(f"tokens[{index}]", f"the vocabulary has {size} tokens, from 0 to {size - 1}", token)

    @cached_property
    def _chat(self) -> messages.Chat:
        tokenizer = self._state.engine_client.tokenizer
        given = getattr(getattr(self._state, "openai_serving_chat", None), "chat_template", None)
        found = given or getattr(tokenizer, "chat_template", None) or ""
        # All that there are, where there are several.
        template = "\n".join(found.values()) if isinstance(found, Mapping) else str(found)

        def template_knows(role: str) -> bool:
            return not template or f"'{role}'" in template or f'"{role}"' in template

        types = [kind for kind in MM_PARSER_MAP if not (self._reads_only and kind in media.MODALITIES)]
        return messages.Chat(template_knows, types)

    @cached_property
    def _reads_only(self) -> bool:
        """Whether the model takes nothing but text."""
        return not self._state.engine_client.vllm_config.model_config.is_multimodal_model

    async def _failed(self, response: ErrorResponse, body: Mapping[str, Any], record: RequestRecord) -> APIError:
        """The error of a request that vLLM answers with `response`: what the engine said is more precise."""
        if record.failure is not None:
            return await self._exception(record.failure, body)
        await self._cause_is_known()
        return self._errors.response(response, body)

    async def _exception(self, error: Exception, body: Mapping[str, Any]) -> APIError:
        await self._cause_is_known()
        return self._errors.exception(error, body)

    async def _cause_is_known(self) -> None:
        """Return once it is known why the engine died, if it did: its requests end before its process is examined."""
        if self._state.engine_client.errored and self._runtime.failure is None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._runtime.failed.wait(), _CAUSE_S)

    def _stream(
        self, path: str, source: Any, body: dict[str, Any], service_tier: str | None
    ) -> AsyncGenerator[str, None]:
        record = current()

        async def translate(error: Mapping[str, Any]) -> APIError:
            complete = {"message": "", "type": "", "code": 500, **error}
            return await self._failed(ErrorResponse.model_validate({"error": complete}), body, record)

        if path == "/v1/responses":
            events = streaming.response_events(source, translate)
        elif path == "/v1/messages":
            events = streaming.message_events(source, translate)
        else:
            events = streaming.openai_events(source, translate, service_tier)
        return self._guarded(events, body, record)

    async def _guarded(
        self, events: AsyncGenerator[str, None], body: dict[str, Any], record: RequestRecord
    ) -> AsyncGenerator[str, None]:
        """`events`, with what vLLM raises in our taxonomy."""
        async with aclosing(events):
            try:
                async for event in events:
                    yield event
            except REQUEST_ERRORS as error:
                raise await self._exception(record.failure or error, body) from error

    @cached_property
    def _inactive(self) -> tuple[str, ...]:
        """Parameters that do nothing as this engine is configured."""
        config = self._state.engine_client.vllm_config
        # A request's id is that of its header.
        names = ["request_id"]
        names += ["priority"] if config.scheduler_config.policy == "fcfs" else []
        names += ["kv_transfer_params"] if config.kv_transfer_config is None else []
        names += ["ec_transfer_params"] if config.ec_transfer_config is None else []
        return tuple(names)

    def _cause_of_death(self) -> str | None:
        if not self._state.engine_client.errored:
            return None
        return self._runtime.failure or "the engine died"


async def load(runtime: EngineRuntime) -> VLLMServing:
    """Build vLLM's serving layer on the engine of `runtime`, which must be ready."""
    args = runtime.args
    if args.tool_parser_plugin:
        ToolParserManager.import_tool_parser(args.tool_parser_plugin)
    state = State()
    client = runtime.client
    await init_app_state(client, state, args, await client.get_supported_tasks())
    return VLLMServing(runtime, state)


def _shown_to_vllm(request: Request) -> Request:
    """`request` with the headers that its client may set, and with its id as we know it."""
    headers = [(name, value) for name, value in request.scope["headers"] if name in _PASSED_HEADERS]
    headers.append((b"x-request-id", request.state.request_id.encode()))
    return Request({**request.scope, "headers": headers}, request.receive)


def _document(result: BaseModel, notes: AnswerNotes) -> bytes:
    """A whole answer as JSON."""
    without_nulls = isinstance(result, AnthropicMessagesResponse | AnthropicCountTokensResponse)
    if isinstance(result, ChatCompletionResponse | CompletionResponse):
        for choice in result.choices:
            choice.finish_reason = streaming.FINISH_REASONS.get(choice.finish_reason or "", choice.finish_reason)
            reasoning = getattr(getattr(choice, "message", None), "reasoning", None)
            if reasoning is not None:
                choice.message.reasoning_content = reasoning
        if notes.service_tier is not None:
            result.service_tier = notes.service_tier
    document: str = result.model_dump_json(by_alias=True, exclude_none=without_nulls)
    return document.encode()
