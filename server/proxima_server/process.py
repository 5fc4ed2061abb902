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
from fastapi import FastAPI

from proxima_config.layering import LoadedSettings
from proxima_config.settings import ProximaSettings
from proxima_engine.runtime import EngineRuntime
from proxima_server import tls
from proxima_server.admin_access import ADMIN_LISTENER
from proxima_server.app import create_app
from proxima_server.door import open_door
from proxima_server.gateway import Gateway
from proxima_server.http_protocol import protocol_class
from proxima_server.listening import url

_logger = logging.getLogger(__name__)

FLUSH_S = 5
"""How long last bytes may take to reach their clients when all answers are complete."""

SIGNAL_EXIT_BASE = 128
"""Added to a signal's number: the exit code of a process that was made to leave requests unanswered."""


def serve(loaded: LoadedSettings, api: socket.socket, admin: socket.socket | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit code: 0, or 128 + signal if a second one left some unanswered.

    Raises ProximaError, with the root cause, if the engine cannot start or is lost for good.
    """
    certificate = tls.certificate(loaded.settings.server)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(loaded, api, admin, certificate))


async def _serve(
    loaded: LoadedSettings, api: socket.socket, admin: socket.socket | None, certificate: tls.Certificate | None
) -> int:
    settings = loaded.settings
    app = create_app(lambda: EngineRuntime(loaded), settings)
    gateway: Gateway = app.state.gateway
    server = Server(uvicorn_config(app, settings, certificate), admin)
    signals = _Signals(gateway, server)
    _logger.info(
        "Proxima on %s: model %s, scheduler %s, preset %s; loading the engine",
        url(api, tls=certificate is not None),
        settings.model,
        settings.scheduler.kind,
        loaded.preset,
    )
    open_door.warn(settings, keys_required=gateway.door.keys.required)
    watching = [asyncio.create_task(_stop_when_ended(gateway, server))]
    if certificate is not None:
        watching.append(asyncio.create_task(certificate.watch()))
    try:
        await server.serve(sockets=[api])
    finally:
        for task in watching:
            task.cancel()
        # A forced exit skips the application's own shutdown.
        await gateway.stop(now=server.force_exit)
        if server.force_exit:
            # Else it would be cancelled with the loop, which uvicorn logs as an error.
            await server.lifespan.shutdown()
    # What fails after a drain has begun has not failed: someone may have ended all processes of the engine as well.
    if gateway.error is not None and not gateway.drain.draining:
        raise gateway.error
    return signals.exit_code


def uvicorn_config(
    app: FastAPI, settings: ProximaSettings, certificate: tls.Certificate | None = None
) -> uvicorn.Config:
    """How uvicorn serves `app`. Nothing is left to its environment variables."""
    http = settings.server
    return uvicorn.Config(
        app,
        http=protocol_class(http),
        ws="none",
        workers=1,
        log_config=None,
        access_log=False,
        timeout_keep_alive=http.keep_alive_s,
        timeout_graceful_shutdown=FLUSH_S,
        forwarded_allow_ips=http.trusted_proxies,
        server_header=False,
        ssl_context_factory=None if certificate is None else lambda _config, _default: certificate.context,
    )


class Server(uvicorn.Server):
    """uvicorn without its signal handling, which ends the process by the signal itself instead of an exit code, and
    with a second listener for operators."""

    def __init__(self, config: uvicorn.Config, admin: socket.socket | None = None) -> None:
        super().__init__(config)
        self._admin = admin

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._admin is None:
            return
        loop = asyncio.get_running_loop()
        state = {**self.lifespan.state, ADMIN_LISTENER: True}

        def protocol() -> asyncio.Protocol:
            return self.config.http_protocol_class(  # type: ignore[call-arg]  # as uvicorn itself
                config=self.config, server_state=self.server_state, app_state=state
            )

        self.servers.append(await loop.create_server(protocol, sock=self._admin, backlog=self.config.backlog))


class _Signals:
    """The first signal drains, the second ends the process now."""

    def __init__(self, gateway: Gateway, server: Server) -> None:
        self.exit_code = 0
        self._gateway = gateway
        self._server = server
        self._seen = False
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._handle, number)

    def _handle(self, number: signal.Signals) -> None:
        if not self._seen:
            _logger.info("%s: no new requests, the others may finish", number.name)
            self._gateway.begin_drain()
        else:
            _logger.warning("%s again: stopping now", number.name)
            if self._gateway.drain.remaining:
                self.exit_code = SIGNAL_EXIT_BASE + number
            self._gateway.drain.call_off()
            self._server.force_exit = self._server.should_exit = True
        self._seen = True


async def _stop_when_ended(gateway: Gateway, server: Server) -> None:
    await gateway.ended.wait()
    server.should_exit = True
