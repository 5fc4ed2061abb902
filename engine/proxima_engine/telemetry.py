"""Snapshots of the scheduler, from the engine process to the gateway.

vLLM's own statistics objects drop foreign fields on their way to the frontend, so each engine rank sends a small
versioned message over a local ZMQ socket of ours: PUSH in the engine, PULL in the gateway, at most one message per
interval and rank. A lost message costs nothing, the next one carries the whole state.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress

import msgspec
import zmq
import zmq.asyncio

SNAPSHOT_VERSION = 1
_logger = logging.getLogger(__name__)


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
    output_tokens_per_s: float
    finished_per_s: float
    estimated_start_s: dict[str, float]
    """class -> seconds until a request that arrives now would start, at the measured drain rate."""
    backfills_total: int
    yields_total: dict[str, int]
    """mode ("recompute" | "swap") -> running requests that the policy made yield."""
    preemptions_total: int
    """All preemptions of this rank, vLLM's own included."""
    forecasts_checked_total: int = 0
    """Forecasts of block demand whose time has come."""
    forecasts_exceeded_total: int = 0
    """Those that demand was above."""
    plan_time_s_total: float
    policy_state: str
    """"ok", "degraded" (the last plan failed) or "native" (switched off until restart)."""
    policy_failures_total: int
    policy_last_error: str = ""


class SnapshotPublisher:
    """Engine side. `offer` never blocks; a thread of its own sends the newest snapshot, one per interval."""

    def __init__(self, endpoint: str, interval_s: float) -> None:
        self._interval_s = interval_s
        self._latest: SchedulerSnapshot | None = None
        self._wanted = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(endpoint,), name="proxima-snapshots", daemon=True)
        self._thread.start()

    def offer(self, snapshot: SchedulerSnapshot) -> None:
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
        while not self._stopping.is_set():
            self._wanted.wait()
            self._wanted.clear()
            snapshot = self._latest
            if snapshot is not None:
                with suppress(zmq.Again):  # nobody listens, or slowly: the next snapshot replaces this one
                    socket.send(encoder.encode(snapshot), zmq.NOBLOCK)
            self._stopping.wait(self._interval_s)
        context.destroy()


class SnapshotReceiver:
    """Gateway side: keeps the newest snapshot of each rank."""

    def __init__(self, endpoint: str) -> None:
        self.latest: dict[int, SchedulerSnapshot] = {}
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
        if snapshot.version == SNAPSHOT_VERSION:
            self.latest[snapshot.rank] = snapshot
