"""The endpoint of vLLM's old demonstration server, for clients written against it.

    {"prompt": "...", "max_tokens": 16, "temperature": 0, "stream": false, ...}  ->  {"text": ["<prompt><output>", ...]}

`text` has one entry per choice (`n`), each with the prompt in front. With `stream` the answer is one such JSON object
per line, each with the whole text so far, as the last version of that server sent them. The other fields are the
sampling parameters of `/v1/completions`. A missing Content-Type is accepted: that server never looked at it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from proxima_server.answer_notes import notes_of
from proxima_server.body import read_object
from proxima_server.disconnect import until_disconnect
from proxima_server.door import deadlines
from proxima_server.errors import APIError, ErrorCode
from proxima_server.gateway import Gateway
from proxima_server.routes import TheGateway
from proxima_server.routes.answering import ask
from proxima_server.sse import Events, StreamedAnswer

router = APIRouter(tags=["legacy"])

_COMPLETIONS = "/v1/completions"
# Fields of completions that change the answer's shape, which is fixed here.
_FIXED = frozenset({"echo", "model", "stream_options", "suffix", "prompt_embeds"})


@router.post("/generate")
async def generate(request: Request, gateway: TheGateway) -> Response:
    """Continue `prompt`; the answer contains it."""
    gateway.require_ready()
    body = await read_object(request, check_content_type=False)
    _check(body, gateway.serving.known_fields(_COMPLETIONS) - _FIXED | {deadlines.FIELD})
    return await until_disconnect(request, _answer(gateway, body, request))


def _check(body: dict[str, Any], known: frozenset[str]) -> None:
    if "prompt" not in body:
        raise APIError(ErrorCode.MISSING_REQUIRED_PARAMETER, "Missing required parameter: 'prompt'", param="prompt")
    if not isinstance(body["prompt"], str):
        raise APIError(ErrorCode.INVALID_VALUE, "Invalid 'prompt': it must be a string", param="prompt")
    for name in body:
        if name not in known:
            raise APIError(ErrorCode.UNKNOWN_PARAMETER, f"'{name}' is not a parameter of /generate", param=name)


async def _answer(gateway: Gateway, body: dict[str, Any], request: Request) -> Response:
    prompt: str = body["prompt"]
    answer = await ask(gateway, _COMPLETIONS, body, request)
    if isinstance(answer, Response):
        return answer
    if isinstance(answer, bytes):
        choices = json.loads(answer)["choices"]
        text = {"text": [prompt + choice["text"] for choice in choices]}
        return Response(json.dumps(text), media_type="application/json", headers=notes_of(request).headers())
    # No comments: they belong to server-sent events, and these lines are JSON.
    events = Events(answer, gateway.metrics.count_stream_error, comments=False)
    await events.open()
    lines = _lines(events, [prompt] * int(body.get("n") or 1))
    return StreamedAnswer(lines, events, 0, notes_of(request).headers(), media_type="application/x-ndjson")


async def _lines(events: Events, texts: list[str]) -> AsyncIterator[bytes]:
    async for event in events:
        data = event.removeprefix(b"data: ").strip()
        if data == b"[DONE]":
            return
        message = json.loads(data)
        for choice in message.get("choices", ()):
            texts[choice["index"]] += choice["text"]
        yield (data if "error" in message else json.dumps({"text": texts}).encode()) + b"\n"
