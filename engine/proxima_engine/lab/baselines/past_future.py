"""LightLLM's Past-Future scheduler, and the same with the true lengths.

Source: Gong et al., "Past-Future Scheduler for LLM Serving under SLA Guarantees", ASPLOS 2025 (arXiv 2507.10150), and
its implementation `FuturePastReqQueue` in LightLLM's `router/req_queue.py`, whose constants these are:

* *Past.* The lengths of the last 200 answers are the distribution of lengths. At the start half of the window is filled
  with one assumed length.
* For each request that runs, a length is drawn from the part of the distribution above what it has generated, linear
  between neighbours, its declared cap included; for a newcomer from the whole distribution. Small batches are drawn up
  to 5 times, so that at least about 200 draws count, and the worst case decides.
* *Future.* With those lengths, the memory is known at each moment at which somebody ends: with requests sorted by what
  remains, longest first, what the first i hold plus i times what remains of the i-th. The maximum is the future peak.
* A newcomer starts if the peak with it is below 95 % of the pool; first come, first served.
* When a step does not fit after all, the latest arrival gives up its memory (LightLLM's pause strategy `Fcfs`).

LightLLM's memory has single tokens; here each request also counts with what the last of its blocks may leave unused. A
prefix that several requests share counts for each of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from proxima_engine.policy.in_order import start_in_order, yield_until_rest_fits
from proxima_engine.policy.plan import Plan
from proxima_engine.policy.protocol import FinishedRequest
from proxima_engine.policy.view import RunningRequest, StepView, WaitingRequest

WINDOW = 200
LEAST_DRAWS = 200
MOST_LISTS = 5
RESERVED = 0.05
ASSUMED_TOKENS = 1024
"""Length that half of the window is filled with at the start; LightLLM derives it from its flags."""

Tokens = NDArray[np.int64]


class Lengths(Protocol):
    """Where remaining lengths come from."""

    def of_running(self, running: Sequence[RunningRequest]) -> Tokens:
        """Tokens that remain of those who run: one row for each set of lengths to judge the batch by."""
        ...

    def of_newcomer(self, request: WaitingRequest, rows: int) -> Tokens:
        """Tokens that remain of one who waits, for each of the rows."""
        ...


class SampledLengths:
    """Draws from the lengths of recent answers."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._recent = deque([ASSUMED_TOKENS] * (WINDOW // 2), maxlen=WINDOW)
        self._sorted: Tokens = np.array(self._recent)

    def learn(self, output_tokens: int) -> None:
        self._recent.append(output_tokens)
        self._sorted = np.sort(np.array(self._recent))

    def of_running(self, running: Sequence[RunningRequest]) -> Tokens:
        generated = np.array([request.output_tokens for request in running], dtype=np.int64)
        caps = np.array([request.cap_tokens for request in running], dtype=np.int64)
        known, last = self._sorted, len(self._sorted) - 1
        longer = np.searchsorted(known, generated, side="right")
        # Intervals between neighbours of: what was generated, each longer length, the cap if it is longer still.
        intervals = last + 1 - longer + ((longer > last) | (known[last] < caps))
        rows = min(MOST_LISTS, LEAST_DRAWS // max(1, len(running)) + 1)
        at = self._rng.random((rows, len(running))) * intervals
        interval = at.astype(np.int64)
        above = longer + interval
        low = np.where(interval == 0, generated, known[above - 1])
        high = np.where(above <= last, known[np.minimum(above, last)], np.maximum(low, caps))
        lengths = (low + (high - low) * (at - interval) + 0.5).astype(np.int64)
        remaining: Tokens = np.maximum(0, np.minimum(lengths, caps) - generated)
        return remaining

    def of_newcomer(self, request: WaitingRequest, rows: int) -> Tokens:
        lengths = self._sorted[self._rng.integers(len(self._sorted), size=rows)]
        remaining: Tokens = np.maximum(0, np.minimum(lengths, request.cap_tokens) - request.output_tokens)
        return remaining


class KnownLengths:
    """The true ones. Cheats."""

    def __init__(self, true_tokens: Mapping[str, int]) -> None:
        self._true_tokens = true_tokens

    def of_running(self, running: Sequence[RunningRequest]) -> Tokens:
        return np.array([[self._remaining(request) for request in running]], dtype=np.int64)

    def of_newcomer(self, request: WaitingRequest, rows: int) -> Tokens:
        return np.full(rows, self._remaining(request), dtype=np.int64)

    def _remaining(self, request: RunningRequest | WaitingRequest) -> int:
        # One step more: with a step in flight, that is how long the blocks outlive the last token.
        return max(0, self._true_tokens[request.request_id] - request.output_tokens) + 1


class FuturePeakPolicy:
    """Admission by future peak, wherever the lengths come from."""

    def __init__(self, lengths: Lengths, reserved: float) -> None:
        self._lengths = lengths
        self._reserved = reserved

    def plan(self, view: StepView) -> Plan:
        if view.missing_blocks:
            return yield_until_rest_fits(view, sorted(view.running, key=lambda request: request.key, reverse=True))
        future = _Future(view, self._lengths, view.blocks_total * view.block_size * (1 - self._reserved))
        return start_in_order(view, view.waiting, future.admits)


class PastFuturePolicy(FuturePeakPolicy):
    """As published."""

    def __init__(self, seed: int) -> None:
        self._sampled = SampledLengths(seed)
        super().__init__(self._sampled, RESERVED)

    def finished(self, request: FinishedRequest) -> None:
        self._sampled.learn(request.output_tokens)


class PastFutureOraclePolicy(FuturePeakPolicy):
    """The same with true lengths, and so without the reserve for wrong ones. Cheats."""

    def __init__(self, true_tokens: Mapping[str, int]) -> None:
        super().__init__(KnownLengths(true_tokens), reserved=0.0)


class _Future:
    """One step's batch, as newcomers are added to it."""

    def __init__(self, view: StepView, lengths: Lengths, most_tokens: float) -> None:
        self._view = view
        self._lengths = lengths
        self._most_tokens = most_tokens
        self._remaining: Tokens | None = None
        """Drawn when the first newcomer asks: in most steps none does."""
        self._held: Tokens = np.empty(0, dtype=np.int64)

    def admits(self, request: WaitingRequest, _blocks: int) -> bool:
        if self._remaining is None:
            self._remaining = self._lengths.of_running(self._view.running)
            self._held = self._held_by(self._view.running)
        newcomer = self._lengths.of_newcomer(request, len(self._remaining))
        self._remaining = np.concatenate((self._remaining, newcomer[:, None]), axis=1)
        self._held = np.concatenate((self._held, self._held_by([request])))
        return future_peak_tokens(self._remaining, self._held) < self._most_tokens

    def _held_by(self, requests: Sequence[RunningRequest | WaitingRequest]) -> Tokens:
        unused = self._view.block_size - 1
        return np.array(
            [request.prompt_tokens + request.output_tokens + unused for request in requests], dtype=np.int64
        )


def future_peak_tokens(remaining: Tokens, held: Tokens) -> int:
    """The most tokens that a batch will hold at once, in the worst of the sets of lengths.

    ``remaining``: (sets, requests), tokens until each request ends; ``held``: (requests), tokens it holds now.
    """
    longest_first = remaining.argsort(axis=1)[:, ::-1]
    ordered = np.sort(remaining, axis=1)[:, ::-1]
    peaks = held[longest_first].cumsum(axis=1) + ordered * np.arange(1, len(held) + 1)
    return int(peaks.max(initial=0))
