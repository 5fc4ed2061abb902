"""Life of one engine: start in the background, watch, stop. A new engine is a new `EngineRuntime`.

One thread loads (preparing a model and vLLM's constructor take a minute), the event loop stays free, so that `/health`
can say "starting" meanwhile. After that the engine processes are watched; the death of one turns the phase to FAILED at
once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import enum
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from proxima_config.errors import ProximaError
from proxima_config.layering import LoadedSettings
from proxima_engine import launch, processes, root_cause
from proxima_engine.heartbeat import Heartbeat
from proxima_engine.telemetry import SnapshotReceiver

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

logger = logging.getLogger(__name__)

# Between SIGTERM and SIGKILL for engine processes that should only have to let go of memory. vLLM's own executor gives
# its workers five seconds; killed in the middle of that, it leaves semaphores behind, of which Python then complains.
STOP_GRACE_S = 10.0
# How long stop() waits for a loader thread that has started no engine process (it may sit in an import or a download;
# the thread is a daemon and cannot start a process any more).
LOADER_GRACE_S = 2.0
KILL_INTERVAL_S = 0.2


Build = Callable[[LoadedSettings, Callable[[], None]], "tuple[AsyncLLM, argparse.Namespace]"]
"""Signature of :func:`proxima_engine.launch.build`."""


class EnginePhase(enum.Enum):
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    STOPPED = "stopped"


class EngineUnavailable(ProximaError):  # noqa: N818 - a state, not a fault
    """The engine is not ready, has failed or was stopped; the message says which."""


class _CalledOffError(Exception):
    """stop() came before the engine processes were started."""


class EngineRuntime:
    """Owns the `AsyncLLM` and its processes. All methods are called on one event loop."""

    def __init__(self, loaded: LoadedSettings, *, build: Build = launch.build) -> None:
        self._build = build
        self._given = loaded
        self.settings = loaded.settings
        self.phase = EnginePhase.STARTING
        # One line for people; set when phase is FAILED.
        self.failure: str | None = None
        # The error that ended the start, with its exit code, for `proxima serve`.
        self.start_error: ProximaError | None = None
        self.failed = asyncio.Event()
        self._settled = asyncio.Event()
        self._directory = Path(tempfile.mkdtemp(prefix="proxima-"))
        self._failures = root_cause.FailureLog(self._directory)
        self.snapshot_receiver = SnapshotReceiver(f"ipc://{self._directory}/snapshot")
        self.heartbeat = Heartbeat(self._snapshot_steps)
        self._processes = processes.ProcessGuard()
        self._tasks: list[asyncio.Task[None]] = []
        self._loader: threading.Thread | None = None
        self._loaded = asyncio.Event()
        self._args: argparse.Namespace | None = None
        self._client: AsyncLLM | None = None
        self._spawn_gate = threading.Lock()
        self._stop_requested = False
        self._spawning = False
        self._stop_lock = asyncio.Lock()
        self._killed_because: str | None = None

    # -- state -----------------------------------------------------------------------------------------------------

    @property
    def client(self) -> AsyncLLM:
        """The engine. Raises EngineUnavailable unless it is ready and alive."""
        if self.phase is not EnginePhase.READY or self._client is None:
            raise EngineUnavailable(self.failure or f"the engine is {self.phase.value}")
        if self._client.errored:
            raise EngineUnavailable("the engine has died")
        return self._client

    @property
    def args(self) -> argparse.Namespace:
        """The arguments as vLLM's own parser sees them. Raises EngineUnavailable until they are parsed."""
        if self._args is None:
            raise EngineUnavailable(self.failure or f"the engine is {self.phase.value}")
        return self._args

    @property
    def hang(self) -> str | None:
        """What is wrong with an engine that lives and has work, but makes no steps; None otherwise."""
        stall, limit_s = self.heartbeat.worst, self.settings.lifecycle.hang_s
        if self.phase is not EnginePhase.READY or not 0 < limit_s <= stall.seconds:
            return None
        who = "the engine" if stall.rank is None else f"rank {stall.rank} of the engine"
        return f"{who} hangs: it has {stall.unfinished} requests and made no step for {limit_s:g} s"

    def _snapshot_steps(self) -> dict[int, int]:
        return {rank: snapshot.step for rank, snapshot in self.snapshot_receiver.latest.items()}

    async def wait(self) -> EnginePhase:
        """Wait until the engine is READY, FAILED or STOPPED."""
        await self._settled.wait()
        return self.phase

    # -- start -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to load in a thread and return at once."""
        if self._loader is not None:
            return
        self._tasks.append(asyncio.create_task(self.snapshot_receiver.run(), name="snapshot-receiver"))
        # Not an executor's thread: those are joined at interpreter exit, and this one may sit in a download.
        loop = asyncio.get_running_loop()
        # The processes of the engine inherit it; the scheduler and the plugin in them read it.
        os.environ[root_cause.DIRECTORY_VARIABLE] = str(self._directory)
        self._loader = threading.Thread(target=self._load, args=(loop,), name="engine-loader", daemon=True)
        self._loader.start()

    def _load(self, loop: asyncio.AbstractEventLoop) -> None:
        """Runs in the loader thread."""
        client: AsyncLLM | None = None
        try:
            client, self._args = self._build(self._given, self._before_spawn)
            loop.call_soon_threadsafe(self._on_built, client)
        except BaseException as error:  # noqa: BLE001 - boundary of a thread: whatever ended it is reported
            if client is not None:
                # The loop is closed: nobody waits for this engine any more.
                client.shutdown(timeout=0)
            elif not loop.is_closed():
                loop.call_soon_threadsafe(self._on_error, error)

    def _before_spawn(self) -> None:
        with self._spawn_gate:
            if self._stop_requested:
                raise _CalledOffError
            self._spawning = True

    def _on_error(self, error: BaseException) -> None:
        self._loaded.set()
        if self._stop_requested:
            return
        self.start_error = self._failures.explain_start(error)
        logger.debug("traceback of the failed start", exc_info=error)
        self._fail(str(self.start_error))

    def _on_built(self, client: AsyncLLM) -> None:
        self._loaded.set()
        self._client = client
        if not self._stop_requested:
            self._tasks.append(asyncio.create_task(self._watch(client), name="engine-watch"))

    async def _watch(self, client: AsyncLLM) -> None:
        """From built to dead; cancelled by stop()."""
        self._processes.look()
        self.heartbeat.listen(client)
        watching_steps = asyncio.create_task(self.heartbeat.watch(client))
        death = asyncio.create_task(processes.first_death(client))
        # Doubles as the first message over the sockets, which starts vLLM's reader task on this loop: without that
        # task "engine dead" messages would go unread until the first request.
        greeting = asyncio.create_task(client.reset_mm_cache())
        try:
            await asyncio.wait({greeting, death}, return_when=asyncio.FIRST_COMPLETED)
            if not death.done() and greeting.exception() is None:
                self.phase = EnginePhase.READY
                self._settled.set()
                await death
        finally:
            for task in (greeting, death, watching_steps):
                task.cancel()
        self._fail(self._killed_because or self._failures.explain_death(await processes.exit_codes(client)))
        logger.error("%s", self.failure)
        # What is left of it holds memory and answers nobody.
        await asyncio.to_thread(self._processes.kill, STOP_GRACE_S)

    def _fail(self, message: str) -> None:
        self.phase = EnginePhase.FAILED
        self.failure = message
        self.failed.set()
        self._settled.set()

    # -- stop ------------------------------------------------------------------------------------------------------

    async def kill(self, cause: str) -> None:
        """End the processes of an engine that hangs; what follows is what follows its death by itself."""
        self._killed_because = cause
        await asyncio.to_thread(self._processes.kill, STOP_GRACE_S)
        # Engines that are no processes of ours (Ray's actors) do not end by that.
        self._fail(cause)

    async def stop(self, *, now: bool = False) -> None:
        """End the engine in whatever state it is, leaving no process behind. May be called again.

        `now` gives its processes no time to finish anything.
        """
        async with self._stop_lock:
            if self.phase is EnginePhase.STOPPED:
                return
            with self._spawn_gate:
                self._stop_requested = True
            await self._end_loader()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self.snapshot_receiver.close()
            if self._client is not None:
                self._processes.look()
                if (reader := getattr(self._client, "output_handler", None)) is not None:
                    # It would report the end of the engine process as a death.
                    reader.cancel()
                    self._end_requests(self._client)
                await asyncio.to_thread(self._client.shutdown, timeout=0 if now else self._stop_grace_s())
            await asyncio.to_thread(self._processes.kill, STOP_GRACE_S)
            shutil.rmtree(self._directory, ignore_errors=True)
            self.phase = EnginePhase.STOPPED
            self._settled.set()

    @staticmethod
    def _end_requests(client: AsyncLLM) -> None:
        """Requests that are still with the engine would wait for ever: their reader may have been stopped before it saw
        the engine die."""
        from vllm.v1.engine.exceptions import EngineDeadError

        client.output_processor.propagate_error(EngineDeadError())

    async def _end_loader(self) -> None:
        """Interrupt a load in progress: vLLM's constructor cannot be cancelled, but gives up when its processes die."""
        if self._loader is None or self._loaded.is_set():
            return
        if not self._spawning:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._loaded.wait(), LOADER_GRACE_S)
            return
        while not self._loaded.is_set():
            await asyncio.to_thread(self._processes.kill, STOP_GRACE_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._loaded.wait(), KILL_INTERVAL_S)

    def _stop_grace_s(self) -> float:
        """vLLM's own --shutdown-timeout where longer: seconds running requests may take to finish."""
        return max(STOP_GRACE_S, float(getattr(self._args, "shutdown_timeout", None) or 0))
