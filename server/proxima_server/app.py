"""The FastAPI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from proxima_config.settings import ProximaSettings
from proxima_engine.runtime import EngineRuntime
from proxima_server import errors, openapi
from proxima_server.admin_access import AdminAccess
from proxima_server.asgi import AnswerHead, NormalizePath
from proxima_server.body_limit import LimitBody
from proxima_server.door.auth import Authenticate
from proxima_server.door.refusals import Rejection
from proxima_server.door.retry import SayWhenToRetry
from proxima_server.drain import TrackWork
from proxima_server.gateway import Gateway, LoadServing, MakeRuntime
from proxima_server.live.feed import Feed
from proxima_server.live.state import LiveState
from proxima_server.metrics.exposition import own_registry
from proxima_server.observability.middleware import ObserveRequests
from proxima_server.request_id import IdentifyRequests
from proxima_server.routes import (
    admin,
    completions,
    docs,
    generate,
    health,
    live,
    messages,
    metrics,
    models,
    page,
    profile,
    tokenization,
    version,
)
from proxima_server.serving import ServingLayer
from proxima_server.versions import proxima_version

_ROUTERS = (completions, messages, generate, tokenization, models, health, metrics, live, profile, admin, version)


async def load_vllm_serving(runtime: EngineRuntime) -> ServingLayer:
    """Imports vLLM's serving layer in a thread, for HTTP goes on answering."""
    module = await asyncio.to_thread(import_module, "proxima_server.vllm_serving")
    serving: ServingLayer = await module.load(runtime)
    return serving


def create_app(
    make_runtime: MakeRuntime, settings: ProximaSettings, load_serving: LoadServing = load_vllm_serving
) -> FastAPI:
    """The gateway over the engines that `make_runtime` makes, which the application starts and stops.

    `app.state.gateway` tells how it is.
    """
    gateway = Gateway(make_runtime, settings, load_serving)
    state = LiveState(gateway)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        tasks = {
            asyncio.create_task(gateway.run(), name="gateway"),
            asyncio.create_task(state.remember_latency(), name="latency"),
        }
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await gateway.stop()

    app = FastAPI(
        title="Proxima Gateway",
        version=proxima_version(),
        description="OpenAI-compatible serving gateway over vLLM",
        root_path=settings.server.root_path,
        docs_url=None,
        openapi_url=docs.OPENAPI_URL if settings.server.docs else None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.gateway = gateway
    app.state.registry = own_registry(gateway)
    app.state.feed = Feed(state.document)
    for module in _ROUTERS:
        app.include_router(module.router)
    if settings.server.docs:
        app.include_router(docs.router)
    if settings.server.page:
        app.include_router(page.router)
    errors.install(app)
    openapi.install(app, gateway)
    _add_middleware(app, gateway, settings)
    return app


def _add_middleware(app: FastAPI, gateway: Gateway, settings: ProximaSettings) -> None:
    """The last added is the outermost."""
    door = gateway.door
    app.add_middleware(
        Authenticate,
        keys=door.keys,
        limit_headers=door.limit_headers,
        count_refusal=lambda: door.refusals.count(Rejection.KEY),
    )
    app.add_middleware(TrackWork, drain=gateway.drain, count_stream_error=gateway.metrics.count_stream_error)
    app.add_middleware(SayWhenToRetry, wait_s=door.retry_s, draw=door.refusals.draw)
    app.add_middleware(LimitBody, max_body_bytes=settings.server.max_body_bytes)
    app.add_middleware(AdminAccess, settings=settings.admin)
    if settings.server.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.server.cors_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["*"],
        )
    app.add_middleware(ObserveRequests, gateway=gateway)
    app.add_middleware(NormalizePath)
    app.add_middleware(AnswerHead)
    app.add_middleware(IdentifyRequests)
