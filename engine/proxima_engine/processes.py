"""The operating-system side of an engine: which processes it consists of, when one dies, and how all of them end."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing.connection
import time
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from vllm.v1.engine.async_llm import AsyncLLM

# Names vLLM gives to the processes it starts next to the client; each may have worker processes below it.
_ENGINE_NAMES = ("EngineCore", "VLLM_DP_Coordinator")
# vLLM keeps the announcement of an engine core that is dying in a flag; the end of its process needs no polling.
ANNOUNCEMENT_INTERVAL_S = 0.5
# The sentinel of a process closes before the kernel has let go of its memory, which takes a while where there is much.
EXIT_CODE_TIMEOUT_S = 5.0
EXIT_CODE_INTERVAL_S = 0.02


class ProcessGuard:
    """Remembers every process of one engine, so that none outlives it.

    An engine process that is killed leaves its workers to init; they are found because they were seen earlier.
    """

    def __init__(self) -> None:
        self._foreign = {child.pid for child in multiprocessing.active_children()}
        self._seen: set[psutil.Process] = set()

    def look(self) -> None:
        """Take note of the engine's processes as they are now."""
        for child in multiprocessing.active_children():
            if child.pid is None or child.pid in self._foreign or not child.name.startswith(_ENGINE_NAMES):
                continue
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(child.pid)
                self._seen.update((process, *process.children(recursive=True)))

    def kill(self, grace_s: float) -> None:
        """SIGKILL whatever is alive and wait up to grace_s seconds until it is gone."""
        self.look()
        alive = [process for process in self._seen if process.is_running()]
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=grace_s)
        # Reaps the direct children, which psutil cannot tell from zombies of somebody else.
        multiprocessing.active_children()


async def first_death(client: AsyncLLM) -> None:
    """Return as soon as an engine process has ended or has announced its end on its socket."""
    loop = asyncio.get_running_loop()
    died = asyncio.Event()
    # Ray's engines are actors, not processes; for those the announcement must do.
    manager = client.engine_core.resources.engine_manager
    sentinels = [process.sentinel for process in getattr(manager, "processes", ())]
    for sentinel in sentinels:
        loop.add_reader(sentinel, died.set)
    try:
        while not died.is_set() and not client.errored:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(died.wait(), ANNOUNCEMENT_INTERVAL_S)
    finally:
        for sentinel in sentinels:
            loop.remove_reader(sentinel)


async def exit_codes(client: AsyncLLM) -> dict[str, int]:
    """Exit codes by process name of the engine processes that have ended; negative ones are signals."""
    manager = client.engine_core.resources.engine_manager
    ended = [process for process in getattr(manager, "processes", ()) if _has_ended(process)]
    return await asyncio.to_thread(_await_codes, ended)


def _has_ended(process: BaseProcess) -> bool:
    return bool(multiprocessing.connection.wait([process.sentinel], timeout=0))


def _await_codes(ended: list[BaseProcess]) -> dict[str, int]:
    # vLLM's monitor thread waits for the same processes. Whoever comes second is told that there is no such child, and
    # reads None until the first has stored the code.
    codes: dict[str, int] = {}
    deadline = time.monotonic() + EXIT_CODE_TIMEOUT_S
    while len(codes) < len(ended) and time.monotonic() < deadline:
        time.sleep(EXIT_CODE_INTERVAL_S)
        codes |= {each.name: code for each in ended if (code := each.exitcode) is not None}
    return codes
