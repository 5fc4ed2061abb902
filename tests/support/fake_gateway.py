"""The gateway over an engine written by hand: phases are set by the test, answers are scripted."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
from fastapi import Request

from proxima_config.errors import ProximaError
from proxima_config.settings import ProximaSettings
from proxima_engine import watch
from proxima_engine.runtime import EnginePhase
from proxima_engine.telemetry import Decision, RequestState, SchedulerSnapshot
from proxima_engine.watch import EngineTimes, PromptWatch
from proxima_server import hints
from proxima_server.app import create_app
from proxima_server.errors import APIError, ErrorCode
from proxima_server.gateway import Gateway
from proxima_server.listening import listen, url
from proxima_server.live.feed import Feed
from proxima_server.process import Server, uvicorn_config
from proxima_server.tls import Certificate

BROKEN = APIError(ErrorCode.INTERNAL_ERROR, "the worker broke")
"""Among the events of a stream: there it fails."""
PROMPT_TOKENS, CACHED_TOKENS = 5, 3
ENGINE_TIMES = EngineTimes(queued_s=0.002, prefill_s=0.003, decode_s=0.004)


@dataclass
class _Receiver:
    latest: dict[int, SchedulerSnapshot] = field(default_factory=dict)
    requests: dict[int, list[RequestState]] = field(default_factory=dict)
    decisions: deque[tuple[int, Decision]] = field(default_factory=deque)


@dataclass
class _Heartbeat:
    stalled_s: float = 0.0


class FakeRuntime:
    """Stands in for EngineRuntime; the test decides when it is ready or has failed."""

    def __init__(self) -> None:
        self.phase = EnginePhase.STARTING
        self.failure: str | None = None
        self.hang: str | None = None
        self.failed = asyncio.Event()
        self.heartbeat = _Heartbeat()
        self.start_error: ProximaError | None = None
        self.snapshot_receiver = _Receiver()
        self.stopped = False
        self._settled = asyncio.Event()

    def start(self) -> None:
        pass

    async def wait(self) -> EnginePhase:
        await self._settled.wait()
        return self.phase

    async def stop(self, *, now: bool = False) -> None:
        self.stopped = True

    async def kill(self, cause: str) -> None:
        self.fail(cause)

    def become_ready(self) -> None:
        self.phase = EnginePhase.READY
        self._settled.set()

    def fail(self, cause: str) -> None:
        self.phase = EnginePhase.FAILED
        self.failure = cause
        self.failed.set()
        self._settled.set()


class FakeServing:
    """Answers what the test scripted, and notes whether its streams were closed."""

    def __init__(self) -> None:
        self.events: list[str | Exception] = ['data: {"choices": [{"index": 0, "text": "!"}]}\n\n', "data: [DONE]\n\n"]
        self.answers: Callable[[dict[str, Any]], bytes] = lambda _body: b"{}"
        self.hold = asyncio.Event()
        self.hold.set()
        self.started = asyncio.Event()
        self.ended = asyncio.Event()
        self.wait_first = asyncio.Event()
        """Unset: streams wait before their first event."""
        self.wait_first.set()
        self.first_token = False
        self.pause_s = 0.0
        self.bodies: list[dict[str, Any]] = []
        """What came, with the hints to the scheduler."""
        self.engine_ids: list[str] = []
        """Under which the engine knows what came; its own ids have a random end besides."""
        self.swallows_cancelling = False
        """As vLLM's handlers do: they answer that the client has gone."""

    async def answer(self, path: str, body: dict[str, Any], request: Request) -> bytes | AsyncGenerator[str, None]:
        hints.write(body, hints.hints_of(request))
        self.bodies.append(body)
        prompt = self._to_engine(body)
        if body.get("stream"):
            return self._stream(prompt)
        try:
            self.started.set()
            await asyncio.sleep(self.pause_s)
            await self.hold.wait()
            prompt.started(PROMPT_TOKENS, CACHED_TOKENS, ENGINE_TIMES)
            prompt.output(2)
            prompt.ended(ENGINE_TIMES)
            return self.answers(body)
        except asyncio.CancelledError:
            if not self.swallows_cancelling:
                raise
            raise APIError(ErrorCode.INVALID_VALUE, "Client disconnected") from None
        finally:
            self.ended.set()

    def _to_engine(self, body: dict[str, Any]) -> PromptWatch:
        """What the engine's client does with a prompt."""
        request = watch.current.get()
        assert request is not None
        self.engine_ids.append(f"cmpl-{len(self.engine_ids)}")
        told = body.get("vllm_xargs") or {}
        return request.watch_prompt(self.engine_ids[-1], None, told, 1, streamed=bool(body.get("stream")))

    async def _stream(self, prompt: PromptWatch) -> AsyncGenerator[str, None]:
        try:
            await self.wait_first.wait()
            prompt.started(PROMPT_TOKENS, CACHED_TOKENS, ENGINE_TIMES)
            for event in self.events:
                if isinstance(event, Exception):
                    raise event
                prompt.output(1 if "choices" in event else 0)
                yield event
                self.started.set()
                await self.hold.wait()
        finally:
            self.ended.set()

    def has_first_token(self, request: Request) -> bool:
        return self.first_token

    async def models(self) -> dict[str, Any]:
        return {"object": "list", "data": [{"id": "fake"}, {"id": "org/adapter"}, {"id": "/srv/folder"}]}

    def known_fields(self, path: str) -> frozenset[str]:
        return frozenset({"prompt", "max_tokens", "temperature", "n", "stream", "model"})

    def schemas(self) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
        return {"/v1/chat/completions": ({"$ref": "#/components/schemas/Chat", "$defs": {"Chat": {}}}, {})}


@dataclass
class FakeGateway:
    runtimes: list[FakeRuntime]
    """One for each start of the engine."""
    serving: FakeServing
    client: httpx.AsyncClient
    gateway: Gateway
    feed: Feed
    address: tuple[str, int]
    stopped: asyncio.Task[None]
    """Done when the server has shut down."""
    admin: httpx.AsyncClient | None = None

    @property
    def runtime(self) -> FakeRuntime:
        return self.runtimes[-1]

    def stop(self) -> None:
        """As SIGTERM does."""
        self.gateway.begin_drain()

    async def ready(self) -> None:
        """Let the engine become ready, and wait until HTTP says so."""
        self.runtime.become_ready()
        while (await self.client.get("/health/ready")).status_code != 200:
            pass


@contextlib.asynccontextmanager
async def fake_gateway(
    *, certificate: Certificate | None = None, verify: ssl.SSLContext | bool = True, **settings: Any
) -> AsyncIterator[FakeGateway]:
    """The real application on a real socket, over a fake engine that is still starting."""
    runtimes: list[FakeRuntime] = []
    serving = FakeServing()

    def make_runtime() -> FakeRuntime:
        runtimes.append(FakeRuntime())
        return runtimes[-1]

    async def load_serving(_runtime: Any) -> FakeServing:
        return serving

    loaded = ProximaSettings(**settings)
    app = create_app(make_runtime, loaded, load_serving)  # type: ignore[arg-type]
    gateway: Gateway = app.state.gateway
    async with contextlib.AsyncExitStack() as stack:
        api = stack.enter_context(listen("127.0.0.1", 0))
        admin = stack.enter_context(listen("127.0.0.1", 0)) if loaded.admin.port else None
        server = Server(uvicorn_config(app, loaded, certificate), admin)
        stopped = asyncio.create_task(_serve(server, gateway, api))

        async def client(socket: socket.socket, *, tls: bool = False) -> httpx.AsyncClient:
            made = httpx.AsyncClient(base_url=url(socket, tls=tls), trust_env=False, timeout=10, verify=verify)
            return await stack.enter_async_context(made)

        fake = FakeGateway(
            runtimes,
            serving,
            await client(api, tls=certificate is not None),
            gateway,
            app.state.feed,
            api.getsockname()[:2],
            stopped,
            None if admin is None else await client(admin),
        )
        try:
            yield fake
        finally:
            serving.hold.set()
            gateway.begin_drain()
            await stopped


async def _serve(server: Server, gateway: Gateway, socket: socket.socket) -> None:
    """What uvicorn.Server.serve does, without its tick, which would cost each test a tenth of a second."""
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup(sockets=[socket])
    await gateway.ended.wait()
    await server.shutdown(sockets=[socket])


def snapshot(**changes: Any) -> SchedulerSnapshot:
    """What a scheduler under some pressure reports, with `changes`."""
    values: dict[str, Any] = {
        "rank": 0,
        "time_s": 0.0,
        "step": 7,
        "running": 3,
        "waiting": {"blocks": {"default": 2}},
        "waiting_tokens": {"default": 700},
        "oldest_wait_s": {"default": 1.25},
        "blocks_total": 191,
        "blocks_used": 100,
        "blocks_peak": 120,
        "output_tokens_per_s": 50.0,
        "finished_per_s": 1.5,
        "estimated_start_s": {"default": 4.0},
        "backfills_total": 5,
        "yields_total": {"recompute": 1},
        "preemptions_total": 2,
        "plan_time_s_total": 0.25,
        "policy_state": "ok",
        "policy_failures_total": 0,
        "policy_last_error": "ValueError: no plan",
    }
    return SchedulerSnapshot(**{**values, **changes})
