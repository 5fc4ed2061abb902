"""Who gives up its blocks when there are not enough for all who run.

The one whose loss costs least, of the lowest priority where vLLM schedules by priority:

1. who has no token yet: nobody sees it stand still;
2. who has had its minimum service since it started or resumed: to yield again at once would be work for nothing;
3. who has missed its target anyway, before one whose answer has been fluent so far;
4. who started last, which mostly has the least to compute again.

Where KV is kept in host memory and that is cheap, nothing has to be computed again. Then it pays to fill the pool
beyond the forecast and to let those who do not fit take turns, so that nobody stands still for long. Turns are taken
from those who have missed their target already, and among them from those who came last: the oldest run through, so
that answers end one after the other and not all of them late.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from proxima_engine.policy.plan import YieldMode
from proxima_engine.policy.view import RunningRequest, StepView

MINIMUM_SERVICE_TOKENS = 64
"""Tokens that a request may generate before it is asked to yield (again), as long as there is anybody else. Where its
KV is computed again."""
NEAR_STEPS = 32
"""How far ahead one looks for those who are likely to yield."""
LIKELY = 4
"""How many of them are named."""
CHEAP = 0.25
"""Part of the time to compute a token up to which it is cheap to move its KV to the host and back."""
STILL_CHEAP = 0.5
"""The same where it has been cheap so far. What a token takes is estimated anew in each step; terms that changed with
each estimate would leave those who wait for their turn without one."""
TURN = 0.45
"""Part of its bound for which one stands still before it takes its turn: those who must give way first need their
minimum service, its KV has to be moved, and both take their time in whole steps."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What it means to yield."""

    mode: YieldMode
    service_tokens: int
    """Minimum service."""
    overcommit: float
    """Forecast demand may come to this multiple of the pool."""
    turn_share: float
    """Part of the time that may go into copies for requests that take turns; 0 where nobody does."""


COMPUTED_AGAIN = Terms(YieldMode.RECOMPUTE, MINIMUM_SERVICE_TOKENS, overcommit=1.0, turn_share=0.0)
MOVED = Terms(YieldMode.SWAP, service_tokens=4, overcommit=1.75, turn_share=0.08)
MOVED_DEARLY = replace(COMPUTED_AGAIN, mode=YieldMode.SWAP)
"""Nobody yields for the sake of others more often than if it were computed again."""


def terms_of(view: StepView, before: Terms) -> Terms:
    """What it means to yield by what it costs now; what is not measured yet is tried. ``before``: by the last view."""
    if view.swap_token_s is None:
        return COMPUTED_AGAIN
    fitted = view.step_time.fit()
    if fitted is not None and view.swap_token_s >= fitted[1]:
        # To compute it again takes less time.
        return COMPUTED_AGAIN
    part = STILL_CHEAP if before == MOVED else CHEAP
    return MOVED if fitted is None or view.swap_token_s <= part * fitted[1] else MOVED_DEARLY


@dataclass(frozen=True, slots=True)
class Turns:
    """For how long one who yielded stands still before it takes its turn."""

    stall_s: float
    """Longest gap between two tokens of an answer that is promised."""
    max_stall_s: float
    """How long one may stand still whose answer has had a longer one."""

    def after_s(self, *, is_late: bool) -> float:
        """One that is fluent so far can come back in time. One that is not loses nothing more up to its own bound."""
        if is_late:
            return self.stall_s if self.max_stall_s == math.inf else TURN * self.max_stall_s
        return TURN * min(self.stall_s, self.max_stall_s)


NO_TURNS = Turns(math.inf, math.inf)


class Candidate(NamedTuple):
    request: RunningRequest
    is_late: bool
    """Its first token came after its target, or its answer has stood still already."""
    served_tokens: int
    """Generated since it started or resumed."""


def victims(
    candidates: Iterable[Candidate],
    missing_blocks: int,
    freed_blocks: Callable[[RunningRequest], int],
    terms: Terms = COMPUTED_AGAIN,
) -> Sequence[RunningRequest]:
    """Those who yield, until the others have the blocks of this step. The last one never does: alone in the pool it has
    all there is. ``freed_blocks``: how many there are more when that one yields."""
    # A heap rather than a sorted list: of hundreds who run one or two are taken. No two losses are equal, because they
    # end with the request's id, so what stands behind them is never compared.
    by_loss = [(_loss(candidate, terms), candidate[0]) for candidate in candidates]
    heapq.heapify(by_loss)
    chosen: list[RunningRequest] = []
    while missing_blocks > 0 and len(by_loss) > 1:
        _, victim = heapq.heappop(by_loss)
        chosen.append(victim)
        missing_blocks -= freed_blocks(victim)
    return chosen


def in_turn(candidates: Iterable[Candidate], terms: Terms) -> Sequence[RunningRequest]:
    """Those who have been served for long enough to make room for one who stands still; of the lowest priority first,
    then who is late already, and of those who came last."""
    served = [each for each in candidates if each.served_tokens >= terms.service_tokens]
    served.sort(key=lambda each: (each.request.priority, each.is_late, each.request.key), reverse=True)
    return [each.request for each in served]


def is_near(view: StepView, running: int) -> bool:
    """Whether the blocks may run out in the next steps, if each of those who run goes on as in a decode."""
    left = view.blocks_total - view.used_blocks - view.growth_blocks
    return running > 1 and left * view.block_size < NEAR_STEPS * running


def likely_victims(candidates: Sequence[Candidate], terms: Terms, *, somebody_stands_still: bool) -> tuple[str, ...]:
    """Who yields next, when blocks run out or, where turns are taken, when the turn of one who stands still comes."""
    found = heapq.nsmallest(LIKELY, candidates, key=lambda candidate: _loss(candidate, terms))
    by_loss = [candidate.request for candidate in found]
    takes_turns = somebody_stands_still and terms.turn_share
    by_turn = in_turn(candidates, terms)[: LIKELY // 2] if takes_turns else ()
    names = dict.fromkeys(each.request_id for each in (*by_loss[: LIKELY // 2], *by_turn, *by_loss))
    return tuple(names)[:LIKELY]


def _loss(candidate: Candidate, terms: Terms) -> tuple[int, bool, bool, bool, float, str]:
    # Hundreds run: each is asked for all its fields at once.
    (request_id, key, _, _, started_s, _, output_tokens, _), is_late, served_tokens = candidate
    streams = output_tokens > 0
    protected = streams and served_tokens < terms.service_tokens
    return -key[0], streams, protected, not is_late, -started_s, request_id
