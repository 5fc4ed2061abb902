"""Whether an engine that has work also makes steps, told without asking it anything.

A hung engine (a device that does not answer, a deadlock) has a process that lives and sockets that accept: nothing
dies, and requests wait for ever. What it no longer does is report steps. So the gateway looks once a second at two
numbers it has anyway: how many requests are with the engine, and how many reports have come from it. No request is made
for it and no token computed; a probe reads a flag.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

TICK_S = 1.0


class StallClock:
    """Seconds for which there was work and no progress; pure, with the time handed in.

    A tick counts as two intervals at most: when this process itself stood still (a suspended machine, a blocked loop),
    reports of the engine may lie unread in the socket, and the engine is not to blame.
    """

    def __init__(self, tick_s: float = TICK_S) -> None:
        self._tick_s = tick_s
        self._progress = -1
        self._last_s: float | None = None
        self.stalled_s = 0.0

    def tick(self, now_s: float, *, unfinished: int, progress: int) -> None:
        """Look once: `unfinished` requests are with the engine, which has reported `progress` times so far."""
        elapsed_s = 0.0 if self._last_s is None else min(now_s - self._last_s, 2 * self._tick_s)
        self._last_s = now_s
        if unfinished == 0 or progress != self._progress:
            self.stalled_s = 0.0
        else:
            self.stalled_s += elapsed_s
        self._progress = progress


class Heartbeat:
    """Counts what a running engine reports, and watches that it goes on while requests are with it."""

    def __init__(self, snapshot_steps: Callable[[], int]) -> None:
        self._snapshot_steps = snapshot_steps
        self._reports = 0
        self._clock = StallClock()
        self.unfinished = 0
        """Requests that the engine had at the last look, waiting or running."""

    @property
    def stalled_s(self) -> float:
        """Seconds for which requests were with the engine and it reported no step; 0 while all is well."""
        return self._clock.stalled_s

    def listen(self, client: AsyncLLM) -> None:
        """Count the messages of the engine core. It sends one for each step under whatever scheduler: its outputs, and
        its statistics where a step had none. With `--disable-log-stats` the steps that only prefill are silent; the
        snapshots of Proxima's scheduler still tell of those."""
        core = client.engine_core
        receive = core.get_output_async

        async def count_and_pass_on() -> object:
            outputs = await receive()
            self._reports += 1
            return outputs

        core.get_output_async = count_and_pass_on

    async def watch(self, client: AsyncLLM) -> None:
        """Look once a second, until cancelled."""
        while True:
            self.unfinished = client.output_processor.get_num_unfinished_requests()
            progress = self._reports + self._snapshot_steps()
            self._clock.tick(time.monotonic(), unfinished=self.unfinished, progress=progress)
            await asyncio.sleep(TICK_S)
