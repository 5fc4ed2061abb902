"""What the endpoints that ask the engine have in common."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from starlette.responses import Response

from proxima_server.disconnect import until_disconnect
from proxima_server.gateway import Gateway
from proxima_server.serving import Answer
from proxima_server.sse import Events, StreamedAnswer


async def respond(gateway: Gateway, path: str, body: dict[str, Any], request: Request) -> Response:
    """The engine's answer to `body`, as JSON or as a stream; given up when the client leaves."""
    serving = gateway.serving

    async def work() -> Response:
        answer: Answer = await serving.answer(path, body, request)
        if isinstance(answer, bytes):
            return Response(answer, media_type="application/json")
        events = Events(answer, serving.stream_error, gateway.metrics.count_stream_error)
        await events.open()
        return StreamedAnswer(events, events)

    return await until_disconnect(request, work())
