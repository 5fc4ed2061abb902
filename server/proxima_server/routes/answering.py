"""What the endpoints that ask the engine have in common."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from starlette.responses import Response

from proxima_server import parameters
from proxima_server.answer_notes import notes_of
from proxima_server.disconnect import until_disconnect
from proxima_server.error_events import error_event
from proxima_server.gateway import Gateway
from proxima_server.serving import Answer
from proxima_server.sse import Events, StreamedAnswer

STREAM_RESPONSES: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}


async def respond(gateway: Gateway, path: str, body: dict[str, Any], request: Request) -> Response:
    """The engine's answer to `body`, as JSON or as a stream; given up when the client leaves."""

    async def work() -> Response:
        answer = await ask(gateway, path, body, request)
        if isinstance(answer, Response):
            answer.headers.update(notes_of(request).headers())
            return answer
        if isinstance(answer, bytes):
            return Response(answer, media_type="application/json", headers=notes_of(request).headers())
        events = Events(answer, gateway.metrics.count_stream_error, error_event(path))
        await events.open()
        return StreamedAnswer(events, events, gateway.settings.server.ping_s, notes_of(request).headers())

    return await until_disconnect(request, work())


async def ask(gateway: Gateway, path: str, body: dict[str, Any], request: Request) -> Answer:
    """What the engine says to `body`. Raises APIError."""
    settings = gateway.settings.server
    parameters.check_sequences(body, settings.max_sequences)
    asked = parameters.request_class(body)
    answer = await gateway.door.answer(gateway.serving, path, body, request, asked)
    gateway.metrics.count_ignored_params(notes_of(request).ignored)
    return answer
