"""vLLM's streams as ours: one way to end well, one way to end badly.

vLLM ends a stream that failed with an error event *and* `[DONE]`, and one that it gave up with a `finish_reason` that
no client knows; both tell clients that all went well. Here whatever fails raises APIError.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

from proxima_engine.watch import GAVE_UP
from proxima_server.errors import APIError, ErrorCode

ERROR_PREFIX = 'data: {"error":'
_DATA = "data: {"

# Inside of a string quotes are escaped, so that these are found as keys only.
_ABORTED = '"finish_reason":"abort"'
_REASONING = '"reasoning":'
_REPEATED, _STOPPED = '"finish_reason":"repetition"', '"finish_reason":"stop"'

FINISH_REASONS: Mapping[str, str] = {"repetition": "stop"}
"""What vLLM says and OpenAI's clients do not know."""

Translate = Callable[[Mapping[str, Any]], Awaitable[APIError]]
"""Makes the error of our taxonomy from vLLM's."""


async def openai_events(
    source: AsyncGenerator[str, None], translate: Translate, service_tier: str | None
) -> AsyncGenerator[str, None]:
    """Events of chat and completions. Raises APIError where the stream fails."""
    tier = "" if service_tier is None else f'"service_tier":{json.dumps(service_tier)},'
    async with aclosing(source):
        async for event in source:
            if event.startswith(ERROR_PREFIX):
                raise await translate(json.loads(event.removeprefix("data: "))["error"])
            if _ABORTED in event:
                raise APIError(ErrorCode.ENGINE_UNAVAILABLE, GAVE_UP)
            if _REPEATED in event:
                event = event.replace(_REPEATED, _STOPPED)  # noqa: PLW2901 - the same event
            if _REASONING in event:
                event = _with_reasoning_content(event)  # noqa: PLW2901
            yield _DATA + tier + event[len(_DATA) :] if tier and event.startswith(_DATA) else event


async def response_events(source: AsyncGenerator[Any, None], translate: Translate) -> AsyncGenerator[str, None]:
    """Events of `/v1/responses`, from vLLM's objects."""
    async with aclosing(source):
        async for event in source:
            kind = getattr(event, "type", "error")
            if kind == "error":
                raise await translate(event.model_dump().get("error", {}))
            yield f"event: {kind}\ndata: {event.model_dump_json(by_alias=True)}\n\n"


async def message_events(source: AsyncGenerator[str, None], translate: Translate) -> AsyncGenerator[str, None]:
    """Events of `/v1/messages`, which vLLM makes from those of chat."""
    async with aclosing(source):
        async for event in source:
            if event.startswith("event: error\n"):
                # What vLLM says there is that the chat's error is no chunk of a chat.
                raise await translate({"code": 500, "message": ""})
            yield event


def mirror_reasoning(message: dict[str, Any]) -> None:
    """`reasoning` under the name that most clients read, too."""
    if message.get("reasoning") is not None:
        message.setdefault("reasoning_content", message["reasoning"])


def _with_reasoning_content(event: str) -> str:
    chunk = json.loads(event.removeprefix("data: "))
    for choice in chunk.get("choices", ()):
        mirror_reasoning(choice.get("delta") or {})
    return f"data: {json.dumps(chunk, ensure_ascii=False, separators=(',', ':'))}\n\n"
