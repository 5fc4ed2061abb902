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

Tokens that are held are rounded up to whole blocks here. A prefix that several requests share counts for each of them.
"""

from __future__ import annotations

from bisect import bisect, bisect_left, insort
from collections import deque
from collections.abc import Iterable, Mapping
from random import Random
from typing import Protocol

from proxima_engine.policy.demand import blocks_for
from proxima_engine.policy.in_order import missing_blocks, start_in_order, yield_until_rest_fits
from proxima_engine.policy.plan import Plan
from proxima_engine.policy.protocol import FinishedRequest
from proxima_engine.policy.view import RunningRequest, StepView, WaitingRequest

WINDOW = 200
LEAST_DRAWS = 200
MOST_LISTS = 5
RESERVED = 0.05
ASSUMED_TOKENS = 1024
"""Length that half of the window is filled with at the start; LightLLM derives it from its flags."""

Demand = tuple[int, int]
"""(minus the tokens that remain, tokens held): sorts as the formula wants it."""


class Lengths(Protocol):
    """Where remaining lengths come from."""

    def lists(self, running: int) -> int:
        """How many sets of lengths to judge a batch of ``running`` requests by."""
        ...

    def of_running(self, request: RunningRequest) -> int:
        """Tokens that remain of one who runs."""
        ...

    def of_newcomer(self, request: WaitingRequest) -> int:
        """Tokens that remain of one who waits."""
        ...


class SampledLengths:
    """Draws from the lengths of recent answers."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._recent = deque([ASSUMED_TOKENS] * (WINDOW // 2), maxlen=WINDOW)
        self._sorted = sorted(self._recent)

    def learn(self, output_tokens: int) -> None:
        if len(self._recent) == WINDOW:
            del self._sorted[bisect_left(self._sorted, self._recent[0])]
        self._recent.append(output_tokens)
        insort(self._sorted, output_tokens)

    def lists(self, running: int) -> int:
        return min(MOST_LISTS, LEAST_DRAWS // max(1, running) + 1)

    def of_running(self, request: RunningRequest) -> int:
        lengths, generated = self._sorted, request.output_tokens
        longer = bisect(lengths, generated)
        # Between neighbours of: what was generated, each longer length, the cap if it is longer still.
        intervals = len(lengths) - longer
        if not intervals or lengths[-1] < request.cap_tokens:
            intervals += 1
        at = self._rng.random() * intervals
        below = int(at)
        low = lengths[longer + below - 1] if below else generated
        high = lengths[longer + below] if longer + below < len(lengths) else max(low, request.cap_tokens)
        length = round(low + (high - low) * (at - below))
        return max(0, min(length, request.cap_tokens) - generated)

    def of_newcomer(self, request: WaitingRequest) -> int:
        length = self._recent[self._rng.randrange(len(self._recent))]
        return max(0, min(length, request.cap_tokens) - request.output_tokens)


class KnownLengths:
    """The true ones. Cheats."""

    def __init__(self, true_tokens: Mapping[str, int]) -> None:
        self._true_tokens = true_tokens

    def lists(self, running: int) -> int:  # noqa: ARG002  one is enough for any number
        return 1

    def of_running(self, request: RunningRequest) -> int:
        return max(0, self._true_tokens[request.request_id] - request.output_tokens)

    def of_newcomer(self, request: WaitingRequest) -> int:
        return max(0, self._true_tokens[request.request_id] - request.output_tokens)


class FuturePeakPolicy:
    """Admission by future peak, whatever the lengths come from."""

    def __init__(self, lengths: Lengths, reserved: float) -> None:
        self._lengths = lengths
        self._reserved = reserved

    def plan(self, view: StepView) -> Plan:
        if missing_blocks(view):
            return yield_until_rest_fits(view, sorted(view.running, key=lambda request: request.key, reverse=True))
        future = _Future(view, self._lengths, view.blocks_total * view.block_size * (1 - self._reserved))
        return start_in_order(view, view.waiting, future.admits)


class PastFuturePolicy(FuturePeakPolicy):
    """As published."""

    def __init__(self, seed: int) -> None:
        self._sampled = SampledLengths(Random(seed))
        super().__init__(self._sampled, RESERVED)

    def finished(self, request: FinishedRequest) -> None:
        self._sampled.learn(request.output_tokens)


class PastFutureOraclePolicy(FuturePeakPolicy):
    """The same with true lengths, and so without the reserve for wrong ones. Cheats."""

    def __init__(self, true_tokens: Mapping[str, int]) -> None:
        super().__init__(KnownLengths(true_tokens), reserved=0.0)


class _Future:
    """Peaks of one step's batch, as newcomers are added to it."""

    def __init__(self, view: StepView, lengths: Lengths, most_tokens: float) -> None:
        self._view = view
        self._lengths = lengths
        self._most_tokens = most_tokens
        self._lists: list[list[Demand]] = []

    def admits(self, request: WaitingRequest, _blocks: int) -> bool:
        # Drawn when the first newcomer asks: in most steps none does.
        self._lists = self._lists or self._drawn()
        held = self._held(request)
        for demands in self._lists:
            insort(demands, (-self._lengths.of_newcomer(request), held))
        return max(map(future_peak_tokens, self._lists)) < self._most_tokens

    def _drawn(self) -> list[list[Demand]]:
        running, lengths = self._view.running, self._lengths
        held = [self._held(request) for request in running]
        return [
            sorted((-lengths.of_running(request), tokens) for request, tokens in zip(running, held, strict=True))
            for _ in range(lengths.lists(len(running)))
        ]

    def _held(self, request: WaitingRequest | RunningRequest) -> int:
        size = self._view.block_size
        return blocks_for(request.prompt_tokens + request.output_tokens, size) * size


def future_peak_tokens(demands: Iterable[Demand]) -> int:
    """The most tokens that a batch will hold at once; ``demands`` sorted, so longest remaining first."""
    peak = held = 0
    for count, (remaining, tokens) in enumerate(demands, 1):
        held += tokens
        peak = max(peak, held - remaining * count)
    return peak
