"""The serving process: uvicorn around the application, signals, exit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Iterator

import uvicorn
import uvloop

from proxima_config.layering import LoadedSettings
from proxima_engine.runtime import EngineRuntime
from proxima_server.app import create_app
from proxima_server.gateway import Gateway
from proxima_server.listening import url

_logger = logging.getLogger(__name__)

GRACEFUL_SHUTDOWN_S = 25
"""How long running answers may take after SIGTERM: less than the 30 s after which Kubernetes kills."""

KEEP_ALIVE_S = 65
"""Longer than the 60 s of common load balancers: who closes an idle connection first must not be us."""


class _Server(uvicorn.Server):
    """uvicorn without its signal handling, which ends the process by the signal itself instead of exit code 0."""

    signalled = False
    """A signal asked for the end: whatever fails after that has not failed."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(loaded: LoadedSettings, listening: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT. Raises ProximaError, with the root cause, if the engine cannot start."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(loaded, listening))


async def _serve(loaded: LoadedSettings, listening: socket.socket) -> None:
    settings = loaded.settings
    app = create_app(EngineRuntime(loaded), settings)
    gateway: Gateway = app.state.gateway
    server = _Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GRACEFUL_SHUTDOWN_S,
            server_header=False,
        )
    )
    _stop_on_signals(server)
    _logger.info(
        "Proxima on %s: model %s, scheduler %s, preset %s; loading the engine",
        url(listening),
        settings.model,
        settings.scheduler.kind,
        loaded.preset,
    )
    watching = asyncio.create_task(_stop_if_start_fails(gateway, server))
    try:
        await server.serve(sockets=[listening])
    finally:
        watching.cancel()
        # A forced exit skips the application's own shutdown.
        await gateway.stop()
    if gateway.start_error is not None and not server.signalled:
        raise gateway.start_error


def _stop_on_signals(server: _Server) -> None:
    """The first signal stops gracefully, the second at once."""

    def stop(number: signal.Signals) -> None:
        server.force_exit = server.should_exit
        server.should_exit = True
        server.signalled = True
        _logger.info("%s: %s", number.name, "stopping now" if server.force_exit else "finishing running requests")

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)


async def _stop_if_start_fails(gateway: Gateway, server: uvicorn.Server) -> None:
    await gateway.settled.wait()
    if gateway.start_error is not None:
        server.should_exit = True
