"""The engine as HTTP sees it: starting, serving, draining, failed or stopped; and its restarts."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from proxima_config.errors import EngineDiedError, EngineStartError, ProximaError
from proxima_config.settings import ProximaSettings
from proxima_engine.restarts import RestartBudget
from proxima_engine.runtime import EnginePhase, EngineRuntime
from proxima_engine.scheduling.guard import PolicyState
from proxima_server.door.door import Door
from proxima_server.drain import Drain, draining_error
from proxima_server.errors import APIError, ErrorCode
from proxima_server.metrics.gateway_metrics import GatewayMetrics
from proxima_server.metrics.gpu import GPUs
from proxima_server.metrics.request_metrics import RequestMetrics
from proxima_server.observability.record import RequestRecord
from proxima_server.serving import ServingLayer

_logger = logging.getLogger(__name__)

MakeRuntime = Callable[[], EngineRuntime]
LoadServing = Callable[[EngineRuntime], Awaitable[ServingLayer]]

_RETRY_AFTER_S = {"starting": "5", "failed": "30", "stopped": "30"}
HANG_CHECK_S = 1.0


class Gateway:
    """Ready once the engine runs *and* the serving layer on top of it is built."""

    def __init__(self, make_runtime: MakeRuntime, settings: ProximaSettings, load_serving: LoadServing) -> None:
        self.settings = settings
        self.runtime = make_runtime()
        """The engine of now: after a restart it is another one."""
        self.metrics = GatewayMetrics()
        self.request_metrics = RequestMetrics()
        self.active_requests: set[RequestRecord] = set()
        """Those to the model that are being answered or wait for it."""
        self.gpus = GPUs()
        self.profiling = asyncio.Lock()
        """Held while a profile is taken: the engine takes one at a time."""
        self.door = Door(settings, lambda: self.runtime.snapshot_receiver.latest)
        self.drain = Drain(settings.lifecycle.drain_s)
        self.started = False
        """Whether loading was over once; it stays so."""
        self.restarts = 0
        self.error: ProximaError | None = None
        """Why there is no engine any more, nor will be: the process ends with it."""
        self.ended = asyncio.Event()
        """Set when the process has nothing left to do."""
        self._make_runtime = make_runtime
        self._load_serving = load_serving
        self._budget = RestartBudget(settings.lifecycle.max_restarts, settings.lifecycle.restart_window_s)
        self._serving: ServingLayer | None = None
        self._draining: asyncio.Task[None] | None = None
        self._stopped = False

    # -- life ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Load the engine and the serving layer, and again when the engine is lost, as often as the settings allow."""
        error = await self._serve_until_lost(self._start)
        while error is not None and (pause_s := self._pause_before_restart_s()) is not None:
            self.restarts += 1
            _logger.error("%s; starting it again in %g s (restart %d)", error, pause_s, self.restarts)
            error = await self._serve_until_lost(partial(self._restart, pause_s))
        if error is None:
            return
        self.error = error
        if self.started:
            _logger.error("%s; the process ends", error)
            await asyncio.sleep(self.settings.lifecycle.exit_delay_s)
        self.ended.set()

    def _pause_before_restart_s(self) -> float | None:
        """None when it is not to be started again. What fails at first fails again: a wrong setting, no such model."""
        if not self.started or self.drain.draining:
            return None
        return self._budget.take(time.monotonic())

    async def _serve_until_lost(self, begin: Callable[[], Awaitable[None]]) -> ProximaError | None:
        """Why there is no engine (any more); None if it was stopped."""
        try:
            await begin()
        except Exception as error:  # boundary of the start: whatever ended it is reported and ends the process
            _logger.debug("traceback of the failed start", exc_info=error)
            return error if isinstance(error, ProximaError) else EngineStartError(f"{type(error).__name__}: {error}")
        if self.runtime.phase is EnginePhase.STOPPED:
            return None
        await self._until_lost()
        self._serving = None
        return EngineDiedError(self.runtime.failure or "the engine died")

    async def _restart(self, pause_s: float) -> None:
        await self.runtime.stop(now=True)
        await asyncio.sleep(pause_s)
        if not self._stopped:
            self.runtime = self._make_runtime()
            await self._start()

    async def _start(self) -> None:
        self.runtime.start()
        phase = await self.runtime.wait()
        if phase is EnginePhase.FAILED:
            raise self.runtime.start_error or EngineStartError(self.runtime.failure or "unknown cause")
        if phase is not EnginePhase.READY:
            return
        self._serving = await self._load_serving(self.runtime)
        # What start-up left behind lives as long as the engine: exempt it from the collector's longest pauses.
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self.started = True
        _logger.info("ready: %s answers requests", self.settings.model)

    async def _until_lost(self) -> None:
        while not self.runtime.failed.is_set():
            try:
                await asyncio.wait_for(self.runtime.failed.wait(), HANG_CHECK_S)
            except TimeoutError:
                # Without restarts a hang is only told: it may yet go by, and who asks for liveness decides.
                if self.runtime.hang is not None and self.settings.lifecycle.max_restarts:
                    await self.runtime.kill(self.runtime.hang)

    def begin_drain(self) -> None:
        """Refuse new requests, let the others finish, then end the process. May be called again."""
        if self.drain.begin():
            self._draining = asyncio.create_task(self._finish_drain(), name="drain")

    async def _finish_drain(self) -> None:
        await self.drain.finish()
        self.ended.set()

    async def stop(self, *, now: bool = False) -> None:
        self._stopped = True
        if self._draining is not None:
            self._draining.cancel()
        self._serving = None
        await self.runtime.stop(now=now)

    # -- state -----------------------------------------------------------------------------------------------------

    @property
    def phase(self) -> EnginePhase:
        if self.error is not None:
            return EnginePhase.FAILED
        if self._stopped:
            return EnginePhase.STOPPED
        # An engine that failed or was stopped all the same is about to be followed by another.
        ready = self.runtime.phase is EnginePhase.READY and self._serving is not None
        return EnginePhase.READY if ready else EnginePhase.STARTING

    @property
    def ready(self) -> bool:
        return self.phase is EnginePhase.READY and self.runtime.hang is None and not self.drain.draining

    @property
    def alive(self) -> bool:
        """Whether this process is worth keeping. Neither load nor loading nor a drain makes it less so, nor a hang
        that a restart of the engine is about to end."""
        hangs = self.runtime.hang is not None and not self.settings.lifecycle.max_restarts
        return self.phase is not EnginePhase.FAILED and not hangs

    @property
    def failure(self) -> str | None:
        return str(self.error) if self.error is not None else self.runtime.failure or self.runtime.hang

    @property
    def serving(self) -> ServingLayer:
        """Raises APIError engine_unavailable unless requests can be served; also those that a drain lets finish."""
        if self.phase is EnginePhase.READY and self._serving is not None:
            return self._serving
        raise self.unavailable()

    def require_ready(self) -> None:
        """Raises APIError engine_unavailable or server_draining unless new requests are served: asked as soon as one
        arrives, before its body is read or its turn awaited."""
        if self.drain.draining:
            raise draining_error()
        _ = self.serving

    def unavailable(self) -> APIError:
        phase = self.phase.value
        message = {
            "starting": "The engine is still loading; retry soon",
            "failed": f"Requests cannot be served: {self.failure}",
            "stopped": "The gateway is shutting down",
        }.get(phase, "The engine does not answer")
        if phase == "starting" and self.started:
            message = "The engine is being restarted; retry soon"
        return APIError(ErrorCode.ENGINE_UNAVAILABLE, message, headers={"Retry-After": _RETRY_AFTER_S.get(phase, "5")})

    @property
    def initial_policy_state(self) -> PolicyState:
        """Before a scheduler has reported; the native scheduler has no policy and never reports."""
        return PolicyState.NATIVE if self.settings.scheduler.kind == "native" else PolicyState.OK

    def policy_state(self) -> dict[str, Any]:
        """State of the scheduling policy: the worst of all engine ranks, with its last error."""
        snapshots = self.runtime.snapshot_receiver.latest.values()
        worst = max(snapshots, key=lambda snapshot: _SEVERITY[snapshot.policy_state], default=None)
        if worst is None:
            return {"state": self.initial_policy_state.value}
        return {
            "state": worst.policy_state,
            "failures": sum(snapshot.policy_failures_total for snapshot in snapshots),
            "last_error": worst.policy_last_error or None,
        }


_SEVERITY = {PolicyState.OK.value: 0, PolicyState.DEGRADED.value: 1, PolicyState.NATIVE.value: 2}
