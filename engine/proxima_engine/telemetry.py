"""Snapshots of the scheduler, from the engine process to the gateway.

vLLM's own statistics objects drop foreign fields on their way to the frontend, so each engine rank sends a small
versioned message over a local ZMQ socket of ours: PUSH in the engine, PULL in the gateway, at most one message per
interval and rank. A message that could not be sent costs nothing: the next one carries the whole state, and the
decisions since the last one that was sent.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable
from enum import StrEnum

import msgspec
import zmq
import zmq.asyncio

SNAPSHOT_VERSION = 1
DECISIONS_KEPT = 1000
"""Newest decisions that are kept for those who ask why."""
REQUESTS_NAMED = 500
"""Requests that a snapshot names at most of those who run, and of those who wait."""
_logger = logging.getLogger(__name__)


class Phase(StrEnum):
    """Where a request is. Only the gateway knows of the first two."""

    DOOR = "door"
    """Queued at the door, or on its way from there."""
    ENGINE = "engine"
    """Somewhere in an engine whose scheduler does not tell."""
    WAITING = "waiting"
    """Its turn has not come."""
    BLOCKED = "blocked"
    """It would be its turn, but KV blocks are not free now, or will not be later."""
    PREFILL = "prefill"
    DECODE = "decode"
    YIELDED = "yielded"
    """It has given up its blocks in the middle of its answer."""
    SWAPPED = "swapped"
    """It has, and its KV waits for it in host memory."""


class RequestState(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One request in the engine."""

    request_id: str
    """The engine's own."""
    request_class: str
    phase: Phase
    reason: str
    """Why it waits (`Reason`); empty for one that runs."""
    arrived_s: float
    """Wall clock, seconds since the epoch."""
    prompt_tokens: int
    computed_tokens: int
    output_tokens: int
    blocks: int
    start_s: float | None
    """Seconds until it is forecast to start; None for one that runs, and where nothing is known."""


class Decision(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A step in which somebody started, yielded, ended or came to wait for another reason."""

    time_s: float
    """Wall clock, seconds since the epoch."""
    step: int
    took_s: float
    """Of which the planning."""
    started: list[str]
    yielded: dict[str, str]
    """request -> mode ("recompute" | "swap" | "preempted" by vLLM itself)."""
    ended: list[str]
    """Since the decision before: complete or aborted."""
    held: dict[str, str]
    """request -> reason, of those that were looked at and did not start."""
    head_start_s: float | None
    backfilled: int
    running: int
    waiting: int
    blocks_used: int
    blocks_peak: int


class SchedulerSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """State of one engine rank's scheduler at one moment."""

    version: int = SNAPSHOT_VERSION
    rank: int
    time_s: float
    """Wall clock, seconds since the epoch."""
    step: int
    running: int
    waiting: dict[str, dict[str, int]]
    """reason -> class -> requests."""
    waiting_tokens: dict[str, int] = {}
    """class -> tokens that those who wait have to be computed for: their prompts, and what they had generated."""
    oldest_wait_s: dict[str, float] = {}
    """class -> age of the oldest that has not started."""
    blocks_total: int
    blocks_used: int
    blocks_peak: int
    """Forecast peak of blocks in use, at the policy's confidence."""
    step_s: float = 0.0
    """Seconds from the end of a step to that of the next, smoothed over the last ones, without idle time; 0 before
    there were two."""
    output_tokens_per_s: float
    finished_per_s: float
    estimated_start_s: dict[str, float]
    """class -> seconds until a request that arrives now would start, at the measured drain rate."""
    backfills_total: int
    yields_total: dict[str, int]
    """mode ("recompute" | "swap") -> running requests that the policy made yield."""
    preemptions_total: int
    """All preemptions of this rank, vLLM's own included."""
    recomputed_tokens_total: int = 0
    """Tokens that were computed again, because their request had lost its KV."""
    forecasts_checked_total: int = 0
    """Forecasts of block demand whose time has come."""
    forecasts_exceeded_total: int = 0
    """Those that demand was above."""
    host_blocks_total: int = 0
    """Blocks in host memory for KV of those who yield; 0 without."""
    host_blocks_used: int = 0
    """Of those who yielded and wait."""
    host_blocks_kept: int = 0
    """With text that a later request may begin with."""
    swapped_blocks_total: dict[str, int] = {}
    """direction ("out" | "in") -> blocks."""
    swapped_bytes_total: dict[str, int] = {}
    swap_time_s_total: float = 0.0
    """Seconds for which copies held the worker up."""
    swap_under_way_s_total: float = 0.0
    """Seconds for which blocks were on their way, beside forward passes or not."""
    swap_ahead_blocks_total: dict[str, int] = {}
    """what ("stored" before a yield, "fetched" before a resumption, and of each what came to "stored_used" and
    "fetched_used") -> blocks."""
    recompute_tokens_avoided_total: int = 0
    prefix_tokens_restored_total: int = 0
    swap_failures_total: dict[str, int] = {}
    """cause ("no_room" | "copy") -> requests that compute again all the same."""
    plan_time_s_total: float
    policy_state: str
    """"ok", "degraded" (the last plan failed) or "native" (switched off until restart)."""
    policy_failures_total: int
    policy_last_error: str = ""
    requests: list[RequestState] | None = None
    """Of one snapshot in several, which cost less without; None in the others."""
    decisions: list[Decision] = []
    """Those since the snapshot before."""


class SnapshotPublisher:
    """Engine side. `offer` never blocks; a thread of its own sends the newest snapshot, one per interval."""

    def __init__(self, endpoint: str, interval_s: float) -> None:
        self._interval_s = interval_s
        self._latest: SchedulerSnapshot | None = None
        self._decisions: deque[Decision] = deque(maxlen=DECISIONS_KEPT)
        self._wanted = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(endpoint,), name="proxima-snapshots", daemon=True)
        self._thread.start()

    def offer(self, snapshot: SchedulerSnapshot, decisions: Iterable[Decision] = ()) -> None:
        self._decisions.extend(decisions)
        self._latest = snapshot
        self._wanted.set()

    def close(self) -> None:
        """Send what is pending and stop."""
        self._stopping.set()
        self._wanted.set()
        self._thread.join(timeout=1)

    def _run(self, endpoint: str) -> None:
        context = zmq.Context()
        socket = context.socket(zmq.PUSH)
        socket.setsockopt(zmq.SNDHWM, 1)
        socket.setsockopt(zmq.LINGER, 100)
        socket.connect(endpoint)
        encoder = msgspec.msgpack.Encoder()
        unsent: list[Decision] = []
        while not self._stopping.is_set():
            self._wanted.wait()
            self._wanted.clear()
            snapshot = self._latest
            if snapshot is not None:
                # Others may come meanwhile: they go with the next.
                unsent += [self._decisions.popleft() for _ in range(len(self._decisions))]
                del unsent[:-DECISIONS_KEPT]
                try:
                    socket.send(encoder.encode(msgspec.structs.replace(snapshot, decisions=unsent)), zmq.NOBLOCK)
                    unsent = []
                except zmq.Again:
                    # Nobody listens yet, or slowly. What is newest then goes in the next interval and takes the
                    # decisions along: an engine that has fallen idle has nothing more to say.
                    self._wanted.set()
            self._stopping.wait(self._interval_s)
        context.destroy()


class SnapshotReceiver:
    """Gateway side: keeps the newest snapshot of each rank."""

    def __init__(self, endpoint: str) -> None:
        self.latest: dict[int, SchedulerSnapshot] = {}
        self.requests: dict[int, list[RequestState]] = {}
        """rank -> requests in that engine, as of its last snapshot that named them."""
        self.decisions: deque[tuple[int, Decision]] = deque(maxlen=DECISIONS_KEPT)
        """(rank, decision), oldest first."""
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PULL)
        self._socket.bind(endpoint)

    async def run(self) -> None:
        """Receive until cancelled."""
        decoder = msgspec.msgpack.Decoder(SchedulerSnapshot)
        try:
            while True:
                self._accept(decoder, await self._socket.recv())
        finally:
            self.close()

    def close(self) -> None:
        """Let go of the socket; also of one that run() never listened to."""
        self._context.destroy(linger=0)

    def _accept(self, decoder: msgspec.msgpack.Decoder[SchedulerSnapshot], message: bytes) -> None:
        try:
            snapshot = decoder.decode(message)
        except msgspec.ValidationError as error:
            _logger.warning("ignored a scheduler snapshot that this version cannot read: %s", error)
            return
        if snapshot.version != SNAPSHOT_VERSION:
            return
        self.latest[snapshot.rank] = snapshot
        if snapshot.requests is not None:
            self.requests[snapshot.rank] = snapshot.requests
        self.decisions.extend((snapshot.rank, decision) for decision in snapshot.decisions)
