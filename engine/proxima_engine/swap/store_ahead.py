"""Which blocks are copied to the host before their owner yields. No vLLM, no torch.

KV of a full block does not change, so it can be copied while its request runs on, and when that yields only its end is
left. That costs nothing where the request does yield, and a copy for nothing where it does not. So it is done for those
who are likely to yield next, for a few blocks in a step, where a yield would be felt, and for as long as what was for
nothing stays below its share of the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from proxima_engine.swap.host_pool import Key
from proxima_engine.swap.ledger import Copy, SwapLedger

BLOCKS_PER_STEP = 8
STAKE = 0.01
"""Part of the time that may go into copies of which no yield has made use."""
FELT = 0.1
"""Part of a step: who yields with copies that take longer than that holds the others up."""


@dataclass(frozen=True, slots=True)
class Victim:
    """Somebody who runs and is likely to yield."""

    request_id: str
    keys: Sequence[Key]
    """Of its full blocks, one after the other, that no step in flight computes for it."""
    device_blocks: Sequence[int]


@dataclass(slots=True)
class _Progress:
    stored: int = 0
    """Blocks of its text, from the first on, that were found on the host."""
    begun: bool = False


@dataclass(frozen=True, slots=True)
class _Choice:
    request_id: str
    key: Key
    device_block: int


class StoreAhead:
    def __init__(self, ledger: SwapLedger) -> None:
        self._ledger = ledger
        self._followed: dict[str, _Progress] = {}
        """Those who were likely to yield at the last step."""
        self._chosen: list[_Choice] = []
        """Of the coming step."""
        self._affordable = True
        self._least_blocks = 0.0
        self.blocks_stored = 0

    @property
    def is_idle(self) -> bool:
        return not self._chosen

    def weigh(self, copy_s: float, token_s: float, step_s: float, computed_tokens: int) -> None:
        """``copy_s``: for which a token's KV is on its way to the host, whether that holds anybody up or not: what is
        stored ahead does not, and must not look cheap for that; ``token_s``: of computing one; ``step_s``: of a step
        like the last; ``computed_tokens``: since the start."""
        unused = (self.blocks_stored - self._ledger.blocks_used_of_ahead) * self._ledger.block_size
        self._affordable = unused * copy_s <= STAKE * computed_tokens * token_s
        self._least_blocks = FELT * step_s / (copy_s * self._ledger.block_size) if copy_s else 0.0

    def choose(self, victims: Iterable[Victim]) -> None:
        """For the coming step; the first are the most likely."""
        before, self._followed = self._followed, {}
        self._chosen = []
        if not self._affordable:
            return
        for victim in victims:
            progress = self._followed[victim.request_id] = before.get(victim.request_id) or _Progress()
            progress.stored += len(self._ledger.pool.find_run(victim.keys[progress.stored :]))
            progress.begun = progress.begun or len(victim.keys) - progress.stored >= self._least_blocks
            if progress.begun:
                self._choose_of(victim, progress.stored)

    def drop(self, request_id: str) -> None:
        """It has lost its blocks, or is about to."""
        self._followed.pop(request_id, None)
        self._chosen = [choice for choice in self._chosen if choice.request_id != request_id]

    def forget_all(self) -> None:
        self._followed.clear()
        self._chosen.clear()

    def take(self, written: set[int]) -> Copy | None:
        """What this step copies, after those who have yielded in it have their places. ``written``: blocks of the
        device that are not to be read in it."""
        chosen, self._chosen = self._chosen, []
        device: list[int] = []
        host: list[int] = []
        for choice in chosen:
            if choice.device_block in written:
                continue
            place = self._ledger.keep(choice.key, ahead=True)
            if place is not None:
                device.append(choice.device_block)
                host.append(place)
        self.blocks_stored += len(host)
        return Copy(tuple(device), tuple(host)) if host else None

    def _choose_of(self, victim: Victim, first: int) -> None:
        for key, block in zip(victim.keys[first:], victim.device_blocks[first:], strict=False):
            if len(self._chosen) >= BLOCKS_PER_STEP:
                return
            if self._ledger.pool.find(key) is None:
                self._chosen.append(_Choice(victim.request_id, key, block))
