"""The engine as HTTP sees it: starting, serving, failed or stopped."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from proxima_config.errors import EngineStartError, ProximaError
from proxima_config.settings import ProximaSettings
from proxima_engine.runtime import EnginePhase, EngineRuntime
from proxima_engine.scheduling.guard import PolicyState
from proxima_server.errors import APIError, ErrorCode
from proxima_server.metrics.gateway_metrics import GatewayMetrics
from proxima_server.metrics.gpu import GPUs
from proxima_server.metrics.request_metrics import RequestMetrics
from proxima_server.serving import ServingLayer

_logger = logging.getLogger(__name__)

LoadServing = Callable[[EngineRuntime], Awaitable[ServingLayer]]

_RETRY_AFTER_S = {"starting": "5", "failed": "30", "stopped": "30"}


class Gateway:
    """Ready once the engine runs *and* the serving layer on top of it is built."""

    def __init__(self, runtime: EngineRuntime, settings: ProximaSettings, load_serving: LoadServing) -> None:
        self.runtime = runtime
        self.settings = settings
        self.metrics = GatewayMetrics()
        self.request_metrics = RequestMetrics()
        self.gpus = GPUs()
        self.profiling = asyncio.Lock()
        """Held while a profile is taken: the engine takes one at a time."""
        self.start_error: ProximaError | None = None
        """Why the start failed; the process ends with it."""
        self.settled = asyncio.Event()
        """Set when the start has succeeded or failed."""
        self._load_serving = load_serving
        self._serving: ServingLayer | None = None

    async def start(self) -> None:
        """Load the engine and the serving layer; returns when that succeeded or failed."""
        try:
            await self._start()
        except Exception as error:  # boundary of the start: whatever ended it is reported and ends the process
            told = EngineStartError(f"{type(error).__name__}: {error}")
            self.start_error = error if isinstance(error, ProximaError) else told
            _logger.debug("traceback of the failed start", exc_info=error)
        finally:
            self.settled.set()

    async def _start(self) -> None:
        self.runtime.start()
        phase = await self.runtime.wait()
        if phase is EnginePhase.FAILED:
            raise self.runtime.start_error or EngineStartError(self.runtime.failure or "unknown cause")
        if phase is not EnginePhase.READY:
            return
        self._serving = await self._load_serving(self.runtime)
        # What start-up left behind lives as long as the process: exempt it from the collector's longest pauses.
        gc.collect()
        gc.freeze()
        _logger.info("ready: %s answers requests", self.settings.model)

    async def stop(self) -> None:
        self._serving = None
        await self.runtime.stop()

    @property
    def phase(self) -> EnginePhase:
        if self.start_error is not None:
            return EnginePhase.FAILED
        if self.runtime.phase is EnginePhase.READY and self._serving is None:
            return EnginePhase.STARTING
        return self.runtime.phase

    @property
    def failure(self) -> str | None:
        return str(self.start_error) if self.start_error is not None else self.runtime.failure

    @property
    def serving(self) -> ServingLayer:
        """Raises APIError engine_unavailable unless requests can be served."""
        if self.phase is EnginePhase.READY and self._serving is not None:
            return self._serving
        raise self.unavailable()

    def require_ready(self) -> None:
        """Raises APIError engine_unavailable unless requests can be served: asked before a body is read."""
        _ = self.serving

    def unavailable(self) -> APIError:
        phase = self.phase.value
        message = {
            "starting": "The engine is still loading; retry soon",
            "failed": f"Requests cannot be served: {self.failure}",
            "stopped": "The gateway is shutting down",
        }.get(phase, "The engine does not answer")
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
