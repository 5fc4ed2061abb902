"""Stands in for vLLM below the engine runtime: real processes with vLLM's names, and no model."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from types import SimpleNamespace

from proxima_engine.plugin import register

_SPAWN = multiprocessing.get_context("spawn")
SLEEPER = [sys.executable, "-c", "import signal; signal.pause()"]


def engine_main(ready: connection.Connection, ending: str) -> None:
    """Body of the process called EngineCore. ``ending`` is what it does after it has said that it lives."""
    register()
    # Like vLLM's, it does not end on SIGTERM while it loads.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    worker = subprocess.Popen(SLEEPER, stdout=subprocess.DEVNULL)
    ready.send(worker.pid)
    if ending == "fails":
        cause = ValueError("the KV cache\nis too small")
        logging.getLogger("vllm.v1.engine.core").error("EngineCore failed to start.", exc_info=cause)
        worker.kill()
        sys.exit(1)
    signal.pause()


class FakeClient:
    """The part of AsyncLLM that the runtime touches."""

    def __init__(self, process: BaseProcess) -> None:
        self.errored = False
        self.process = process
        self.unfinished = 0
        """Requests that the engine has, as the test says."""
        manager = SimpleNamespace(processes=[process])
        self.engine_core = SimpleNamespace(
            resources=SimpleNamespace(engine_manager=manager), get_output_async=self._outputs
        )
        self.reports: list[int] = []
        self.output_processor = SimpleNamespace(get_num_unfinished_requests=lambda: self.unfinished)

    async def reset_mm_cache(self) -> None:
        pass

    def serve_on_ranks(self, ranks: dict[str, int]) -> None:
        """As vLLM's client of several ranks: which of them has the request of each id."""
        self.engine_core.reqs_in_flight = {name: rank.to_bytes(2, "little") for name, rank in ranks.items()}
        self.output_processor.request_states = dict.fromkeys(ranks)

    async def report(self, rank: int = 0) -> None:
        """As vLLM's reader does when the engine core of `rank` has made a step."""
        self.reports.append(rank)
        await self.engine_core.get_output_async()

    async def _outputs(self) -> SimpleNamespace:
        return SimpleNamespace(engine_index=self.reports[-1])

    def shutdown(self, timeout: float | None = None) -> None:
        self.process.kill()
        self.process.join()


class FakeBuild:
    """What launch.build is to the runtime. ``ending``: "ready", "fails" or "loads" for ever."""

    def __init__(self, ending: str) -> None:
        self._ending = ending
        self.process: BaseProcess | None = None
        self.worker_pid = 0
        self.spawned = threading.Event()
        self.spawn_allowed = threading.Event()
        self.spawn_allowed.set()

    def __call__(self, loaded: object, before_spawn: Callable[[], None]) -> tuple[FakeClient, argparse.Namespace]:
        self.spawn_allowed.wait()
        before_spawn()
        ours, theirs = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=engine_main, args=(theirs, self._ending), name="EngineCore")
        self.process.start()
        self.worker_pid = ours.recv()
        self.spawned.set()
        if self._ending != "ready":
            self.process.join()
            raise RuntimeError(
                "Engine core initialization failed. See root cause above. "
                f"Failed core proc(s): {{'EngineCore': {self.process.exitcode}}}"
            )
        return FakeClient(self.process), argparse.Namespace(shutdown_timeout=0)
