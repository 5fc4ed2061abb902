"""Whether an engine that has work also makes steps, told without asking it anything.

A hung engine (a device that does not answer, a deadlock) has a process that lives and sockets that accept: nothing
dies, and requests wait for ever. What it no longer does is report steps. So the gateway looks once a second at two
numbers it has anyway: how many requests are with the engine, and how many reports have come from it. No request is made
for it and no token computed; a probe reads a flag.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.engine import EngineCoreOutputs
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


@dataclass(frozen=True)
class Stall:
    """A rank of the engine that has requests and makes no step."""

    seconds: float
    unfinished: int
    rank: int | None
    """None where there is one rank only."""


NO_STALL = Stall(0.0, 0, None)


class Heartbeat:
    """Counts what each rank of a running engine reports, and watches that it goes on while requests are with it.

    Ranks are watched one by one: of several, those that work would hide the one that hangs.
    """

    def __init__(self, snapshot_steps: Callable[[], Mapping[int, int]]) -> None:
        self._snapshot_steps = snapshot_steps
        self._reports: Counter[int] = Counter()
        self._clocks: dict[int | None, StallClock] = {}
        self.worst = NO_STALL
        """The rank that has stalled for longest, at the last look."""

    @property
    def stalled_s(self) -> float:
        """Seconds for which requests were with a rank and it reported no step; 0 while all is well."""
        return self.worst.seconds

    def listen(self, client: AsyncLLM) -> None:
        """Count the messages of the engine core. It sends one for each step under whatever scheduler: its outputs, and
        its statistics where a step had none. With `--disable-log-stats` the steps that only prefill are silent; the
        snapshots of Proxima's scheduler still tell of those."""
        core = client.engine_core
        receive = core.get_output_async

        async def count_and_pass_on() -> EngineCoreOutputs:
            outputs = await receive()
            self._reports[outputs.engine_index] += 1
            return outputs

        core.get_output_async = count_and_pass_on

    async def watch(self, client: AsyncLLM) -> None:
        """Look once a second, until cancelled."""
        while True:
            self._look(_unfinished_by_rank(client), time.monotonic())
            await asyncio.sleep(TICK_S)

    def _look(self, unfinished: Mapping[int | None, int], now_s: float) -> None:
        steps = self._snapshot_steps()
        for rank in {*unfinished, *self._clocks}:
            clock = self._clocks.setdefault(rank, StallClock())
            if rank is None:
                progress = self._reports.total() + sum(steps.values())
            else:
                progress = self._reports[rank] + steps.get(rank, 0)
            clock.tick(now_s, unfinished=unfinished.get(rank, 0), progress=progress)
        stalls = [Stall(clock.stalled_s, unfinished.get(rank, 0), rank) for rank, clock in self._clocks.items()]
        self.worst = max(stalls, key=lambda stall: stall.seconds, default=NO_STALL)


def _unfinished_by_rank(client: AsyncLLM) -> Mapping[int | None, int]:
    """Requests that each rank has, waiting or running; under None where the client has one rank only."""
    ranks = getattr(client.engine_core, "reqs_in_flight", None)
    if ranks is None:
        return {None: client.output_processor.get_num_unfinished_requests()}
    # Those that have been given up are no work, although their rank has not confirmed it.
    known = client.output_processor.request_states
    return Counter(int.from_bytes(rank, "little") for request_id, rank in ranks.items() if request_id in known)
