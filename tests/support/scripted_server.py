"""An OpenAI-compatible server that does exactly what it is told: delays, refusals, broken streams, silence."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from proxima_bench.loads import Load
from proxima_bench.measurement import Measurement, Warn, Watch, session
from proxima_bench.target import Target

HANG = float("inf")


@dataclass(frozen=True)
class Script:
    """What happens to one request: a delay in seconds before each of its pieces, then the end."""

    delays_s: tuple[float, ...] = (0.0,)
    status: int = 200
    error: str = ""
    """Sent as error event after the pieces."""
    drop: bool = False
    """Close the connection after the pieces, without an end."""
    end: bool = True
    """Whether the stream says that it is complete."""
    usage: bool = True
    tokens: int | None = None
    """Output tokens in `usage`; one a piece if None."""
    pieces: tuple[dict[str, Any], ...] = ()
    """Raw chunks in place of the usual ones."""


@dataclass
class ScriptedServer:
    """``script`` maps the number of a request, in order of arrival, and its body to what happens."""

    script: Callable[[int, dict[str, Any]], Script]
    counter: Callable[[dict[str, Any]], int] | None = None
    """Answers /tokenize; without one there is no such endpoint."""
    metrics: Callable[[], str] | None = None
    page_for: str = ""
    """A path that answers with a web page."""
    gather: int = 0
    """No request is answered before so many have arrived."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    """Numbers of the requests whose clients closed the connection early."""
    _gathered: asyncio.Event = field(default_factory=asyncio.Event)

    def app(self) -> web.Application:
        app = web.Application()
        for path in ("/v1/chat/completions", "/v1/completions", "/generate"):
            app.router.add_post(path, self._answer)
        app.router.add_get("/v1/models", self._models)
        if self.counter:
            app.router.add_post("/tokenize", self._tokenize)
        if self.page_for:
            app.router.add_route("*", self.page_for, self._page)
        if self.metrics:
            app.router.add_get("/metrics", self._metrics)
        return app

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "scripted"}]})

    async def _page(self, _: web.Request) -> web.Response:
        return web.Response(text="<html>", content_type="text/html")

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=self.metrics())

    async def _tokenize(self, request: web.Request) -> web.Response:
        return web.json_response({"count": self.counter(await request.json())})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        number, body = len(self.bodies), await request.json()
        self.bodies.append(body)
        if len(self.bodies) >= self.gather:
            self._gathered.set()
        try:
            await self._gathered.wait()
            return await self._act(request, body, self.script(number, body))
        except (asyncio.CancelledError, ConnectionError):
            self.left.append(number)
            raise

    async def _act(self, request: web.Request, body: dict[str, Any], script: Script) -> web.StreamResponse:
        if script.status != 200:
            await _wait(sum(script.delays_s))
            error = {"error": {"message": script.error or "no", "code": "said_no"}}
            return web.json_response(error, status=script.status)
        if not body["stream"]:
            await _wait(sum(script.delays_s))
            if script.drop:
                request.transport.abort()
            return web.json_response(_whole(request.path, body, script))
        response = web.StreamResponse()
        await response.prepare(request)
        for event in _events(request.path, body, script):
            if isinstance(event, float):
                await _wait(event)
            else:
                await response.write(event)
        if script.drop:
            request.transport.abort()
        return response


async def _wait(delay_s: float) -> None:
    if delay_s == HANG:
        await asyncio.Event().wait()
    await asyncio.sleep(delay_s)


def _usage(script: Script) -> dict[str, int]:
    tokens = len(script.delays_s) if script.tokens is None else script.tokens
    return {"prompt_tokens": 7, "completion_tokens": tokens}


def _whole(path: str, body: dict[str, Any], script: Script) -> dict[str, Any]:
    text = " w" * len(script.delays_s)
    if path == "/generate":
        return {"text": [body["prompt"] + text]}
    key = {"message": {"role": "assistant", "content": text}} if "chat" in path else {"text": text}
    answer: dict[str, Any] = {"choices": [{"index": 0, "finish_reason": "stop", **key}]}
    return {**answer, "usage": _usage(script)} if script.usage else answer


def _events(path: str, body: dict[str, Any], script: Script) -> list[float | bytes]:
    """Delays and bytes in order."""
    events: list[float | bytes] = []
    text = body.get("prompt", "")
    for number, delay_s in enumerate(script.delays_s):
        events.append(float(delay_s))
        text += " w"
        last = script.end and number == len(script.delays_s) - 1
        if path == "/generate":
            events.append(json.dumps({"text": [text]}).encode() + b"\n")
        else:
            events += [_event(chunk) for chunk in script.pieces or _chunks(path, number, last=last)]
    if script.error:
        events.append(_event({"error": {"message": script.error}}))
    elif script.end and path != "/generate":
        if script.usage:
            events.append(_event({"choices": [], "usage": _usage(script)}))
        events.append(b": ping\n\n")
        events.append(b"data: [DONE]\n\n")
    return events


def _chunks(path: str, number: int, *, last: bool) -> list[dict[str, Any]]:
    reason = {"finish_reason": "length" if last else None}
    if "chat" not in path:
        return [{"choices": [{"index": 0, "text": " w", **reason}]}]
    role = [{"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}]
    return (role if number == 0 else []) + [{"choices": [{"index": 0, "delta": {"content": " w"}, **reason}]}]


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


@contextlib.asynccontextmanager
async def serving(server: ScriptedServer, socket: Path) -> AsyncIterator[aiohttp.UnixConnector]:
    """The server on a Unix socket; yields a connector that leads to it."""
    runner = web.AppRunner(server.app(), handler_cancellation=True, shutdown_timeout=0.0, access_log=None)
    await runner.setup()
    await web.UnixSite(runner, str(socket)).start()
    try:
        yield aiohttp.UnixConnector(str(socket), limit=0)
    finally:
        await runner.cleanup()


async def measure(
    server: ScriptedServer,
    load: Load,
    folder: Path,
    watch: Watch | None = None,
    metrics_urls: Sequence[str] = (),
    warn: Warn = lambda _text: None,
) -> Measurement:
    """One measurement whose clock is the loop's own."""
    clock = asyncio.get_running_loop().time
    async with (
        serving(server, folder / "socket") as connector,
        session(
            Target("http://scripted"), load, metrics_urls=metrics_urls, clock=clock, connector=connector, warn=warn
        ) as connected,
    ):
        return await connected.measure(watch)
