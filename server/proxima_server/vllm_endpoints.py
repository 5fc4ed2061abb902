"""The endpoints that vLLM answers: the models of their requests and answers, and who answers.

Imports vLLM, as do the other modules named `vllm_*` and no others of the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import BaseModel, TypeAdapter
from vllm.entrypoints.anthropic.protocol import (
    AnthropicCountTokensRequest,
    AnthropicCountTokensResponse,
    AnthropicMessagesRequest,
    AnthropicMessagesResponse,
)
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest, ChatCompletionResponse
from vllm.entrypoints.openai.completion.protocol import CompletionRequest, CompletionResponse
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest, ResponsesResponse
from vllm.entrypoints.pooling.embed.protocol import EmbeddingChatRequest, EmbeddingCompletionRequest, EmbeddingResponse
from vllm.entrypoints.serve.tokenize.protocol import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeChatRequest,
    TokenizeCompletionRequest,
    TokenizeResponse,
)

from proxima_server.shapes import twin

SCHEMA_REF = "#/components/schemas/{model}"


@dataclass(frozen=True)
class Endpoint:
    requests: tuple[type[BaseModel], ...]
    """Models of a request; where there are two, the second is for bodies with `messages`."""
    response: type[BaseModel]
    handler: str
    """Attribute of vLLM's application state."""
    method: str = "__call__"
    any_role: bool = True
    """Whether the models accept whatever `role` a message has, and look at its parts only when they are rendered."""

    def request(self, body: Mapping[str, Any]) -> type[BaseModel]:
        return self.requests[-1 if "messages" in body else 0]

    def schemas(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """JSON Schemas of request and answer."""
        return _schema(*self.requests), _schema(self.response)

    @cached_property
    def shapes(self) -> Mapping[type[BaseModel], type[BaseModel]]:
        return {model: twin(model) for model in self.requests}


ENDPOINTS: Mapping[str, Endpoint] = {
    "/v1/chat/completions": Endpoint(
        (ChatCompletionRequest,), ChatCompletionResponse, "openai_serving_chat", "create_chat_completion"
    ),
    "/v1/completions": Endpoint(
        (CompletionRequest,), CompletionResponse, "openai_serving_completion", "create_completion"
    ),
    "/v1/responses": Endpoint((ResponsesRequest,), ResponsesResponse, "openai_serving_responses", "create_responses"),
    "/v1/messages": Endpoint(
        (AnthropicMessagesRequest,),
        AnthropicMessagesResponse,
        "anthropic_serving_messages",
        "create_messages",
        any_role=False,
    ),
    "/v1/messages/count_tokens": Endpoint(
        (AnthropicCountTokensRequest,),
        AnthropicCountTokensResponse,
        "anthropic_serving_messages",
        "count_tokens",
        any_role=False,
    ),
    "/v1/embeddings": Endpoint(
        (EmbeddingCompletionRequest, EmbeddingChatRequest), EmbeddingResponse, "serving_embedding"
    ),
    "/tokenize": Endpoint(
        (TokenizeCompletionRequest, TokenizeChatRequest), TokenizeResponse, "serving_tokenization", "create_tokenize"
    ),
    "/detokenize": Endpoint((DetokenizeRequest,), DetokenizeResponse, "serving_tokenization", "create_detokenize"),
}


def _schema(*models: type[BaseModel]) -> Mapping[str, Any]:
    schemas = [TypeAdapter(model).json_schema(ref_template=SCHEMA_REF) for model in models]
    if len(schemas) == 1:
        return schemas[0]
    shared = {name: each for schema in schemas for name, each in schema.pop("$defs", {}).items()}
    return {"anyOf": schemas, "$defs": shared}
