"""Decisions as a trace that Perfetto and chrome://tracing open.

Format: "Trace Event Format" of the Chromium project; times are microseconds. Each request is a row of slices (why it
waited, when it ran), each engine rank a process with counters of its pool.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from proxima_engine.telemetry import Decision

Event = dict[str, Any]
_CATEGORY = "request"


def chrome_trace(decisions: Iterable[tuple[int, Decision]]) -> dict[str, Any]:
    """`decisions` with their ranks, oldest first."""
    ranks: dict[int, _RankTrace] = {}
    for rank, decision in decisions:
        if rank not in ranks:
            ranks[rank] = _RankTrace(rank)
        ranks[rank].add(decision)
    return {"traceEvents": [event for each in ranks.values() for event in each.finish()], "displayTimeUnit": "ms"}


class _RankTrace:
    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._now_us = 0.0
        self._open: dict[str, str] = {}
        """request -> name of the slice that it is in"""
        self._events: list[Event] = [
            {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"engine rank {rank}"}},
            {"ph": "M", "name": "thread_name", "pid": rank, "tid": 0, "args": {"name": "decisions"}},
        ]

    def add(self, decision: Decision) -> None:
        self._now_us = decision.time_s * 1e6
        for request_id in decision.ended:
            self._end(request_id)
        for request_id, mode in decision.yielded.items():
            self._begin(request_id, f"yielded: {mode}")
        for request_id in decision.started:
            self._begin(request_id, "runs")
        for request_id, reason in decision.held.items():
            self._begin(request_id, f"waits: {reason}")
        self._mark(decision)
        self._count("KV blocks", used=decision.blocks_used, peak=decision.blocks_peak)
        self._count("requests", running=decision.running, waiting=decision.waiting)

    def finish(self) -> list[Event]:
        """Close what is still open at the last decision."""
        for request_id in list(self._open):
            self._end(request_id)
        return self._events

    def _begin(self, request_id: str, name: str) -> None:
        if self._open.get(request_id) == name:
            return
        self._end(request_id)
        self._open[request_id] = name
        self._slice("b", request_id, name)

    def _end(self, request_id: str) -> None:
        name = self._open.pop(request_id, None)
        if name is not None:
            self._slice("e", request_id, name)

    def _slice(self, phase: str, request_id: str, name: str) -> None:
        event = {"ph": phase, "cat": _CATEGORY, "id": request_id, "name": name, "args": {"request": request_id}}
        self._events.append(event | {"pid": self._rank, "tid": 0, "ts": self._now_us})

    def _mark(self, decision: Decision) -> None:
        told = {
            "started": decision.started,
            "yielded": decision.yielded,
            "ended": decision.ended,
            "held": decision.held,
            "head_start_s": decision.head_start_s,
        }
        took_us = decision.took_s * 1e6
        event = {"ph": "X", "name": f"step {decision.step}", "dur": took_us, "args": told}
        self._events.append(event | {"pid": self._rank, "tid": 0, "ts": self._now_us})

    def _count(self, name: str, **values: int) -> None:
        self._events.append({"ph": "C", "name": name, "pid": self._rank, "ts": self._now_us, "args": values})
