"""Which requests have KV in host memory, and where: the books of the scheduler's half. No vLLM, no torch.

Blocks are known by the text that they hold, so a request that yields again finds what it stored before, and so does
another with the same beginning. Those of requests that yielded and wait are held for them; all others are there for
whoever asks, until somebody needs the room.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from proxima_engine.swap.host_pool import HostPool, Key


@dataclass(frozen=True, slots=True)
class Copy:
    device_blocks: tuple[int, ...]
    host_blocks: tuple[int, ...]


@dataclass(slots=True)
class _Saved:
    tokens: int
    """Of the request's text, from the first on, whose KV is on the host."""
    host_blocks: list[int]


@dataclass(slots=True)
class SwapLedger:
    host_blocks: int
    block_size: int
    step: int = 0
    """Of the copies that are asked for now."""
    pool: HostPool = field(init=False)
    _saved: dict[str, _Saved] = field(default_factory=dict)
    """Those who yielded and wait."""
    _filled: dict[int, int] = field(default_factory=dict)
    """Host block -> step in which it was filled."""
    _in_use: list[int] = field(default_factory=list)
    """Read or written by copies of this step, and held for nobody."""
    blocks_used_of_ahead: int = 0
    """Blocks that were stored ahead and were there when somebody with that text yielded."""
    _ahead: set[int] = field(default_factory=set)
    """Stored ahead, and no use made of it yet."""

    def __post_init__(self) -> None:
        self.pool = HostPool(self.host_blocks)

    @property
    def blocks_used(self) -> int:
        """Of requests that yielded and wait."""
        return self.pool.blocks_held

    @property
    def blocks_in_reach(self) -> int:
        """Those that requests which yield can have."""
        return self.host_blocks - self.pool.blocks_held

    def save(self, request_id: str, tokens: int, keys: Sequence[Key], device_blocks: Sequence[int]) -> Copy | None:
        """Give a request that yields its place on the host; returns what must be copied there, None if it has no room.

        ``device_blocks`` hold its text from the first token on, of which ``tokens`` are computed; ``keys`` are those of
        its full blocks, as far as they are known.
        """
        pool = self.pool
        self.forget(request_id)
        needed = math.ceil(tokens / self.block_size)
        named = keys[: tokens // self.block_size]
        found = [pool.find(key) for key in named] + [None] * (needed - len(named))
        there = [block for block in found if block is not None]
        pool.hold(there)
        new = pool.take(needed - len(there))
        if new is None:
            pool.let_go(there)
            return None
        self._make_use_of(there)
        places = [index for index, block in enumerate(found) if block is None]
        host = list(found)
        for index, block in zip(places, new, strict=True):
            host[index] = block
            self._fill(block, named[index] if index < len(named) else None)
        self._saved[request_id] = _Saved(tokens, [block for block in host if block is not None])
        return Copy(tuple(device_blocks[index] for index in places), tuple(new))

    def keep(self, key: Key, *, ahead: bool = False) -> int | None:
        """A host block for what a block of the device holds that is about to be used for something else; None if that
        is there already, or if there is no room. The first of a step stay longest: the beginning of a text comes
        before its end. ``ahead``: its owner is likely to yield soon, and has it until then."""
        if (there := self.pool.find(key)) is not None:
            # Until now it was on the device too, and in use there.
            self.pool.hold([there])
            self._in_use.append(there)
            return None
        if (new := self.pool.take(1)) is None:
            return None
        self._fill(new[0], key)
        if ahead:
            self._ahead.add(new[0])
        self._in_use += new
        return new[0]

    def saved_tokens(self, request_id: str) -> int:
        """Tokens of a request that yielded, from the first on, that need not be computed again; 0 if it runs."""
        saved = self._saved.get(request_id)
        return 0 if saved is None else saved.tokens

    def saved_blocks(self, request_id: str) -> Sequence[int]:
        """Host blocks that are held for a request which yielded, in the order of its text."""
        saved = self._saved.get(request_id)
        return () if saved is None else saved.host_blocks

    def kept_tokens(self, keys: Sequence[Key]) -> int:
        """Tokens of these full blocks, one after the other in a text, that are there for whoever asks."""
        return len(self._run_of_before(keys)) * self.block_size

    def resume(
        self, request_id: str, keys: Sequence[Key], first_token: int, end_token: int, device_blocks: Sequence[int]
    ) -> Copy | None:
        """The request runs, in these blocks. Returns what must be copied into them: the tokens from ``first_token``,
        which begins a block, up to ``end_token``. None if that is nothing."""
        saved = self._saved.pop(request_id, None)
        if saved is not None:
            self._in_use += saved.host_blocks
        if first_token >= end_token:
            # All that was saved is on the device, or is computed again. The block in which it ends may be shared by
            # now, and hold more than it did.
            return None
        first, end = first_token // self.block_size, math.ceil(end_token / self.block_size)
        if saved is not None and saved.tokens >= end_token:
            host = saved.host_blocks[first:end]
        else:
            host = self._run_of_before(keys[first:end])
            self.pool.hold(host)
            self._in_use += host
        return Copy(tuple(device_blocks[first:end]), tuple(host))

    def step_ends(self) -> None:
        """The copies of this step are on their way."""
        self.pool.let_go(self._in_use)
        self._in_use.clear()
        self.step += 1

    def forget(self, request_id: str) -> None:
        """The request has ended, or computes again."""
        saved = self._saved.pop(request_id, None)
        if saved is not None:
            self.pool.let_go(saved.host_blocks)

    def distrust(self, host_blocks: Collection[int]) -> list[str]:
        """What is in there may be wrong. Returns the requests that lose what they saved."""
        for block in host_blocks:
            self.pool.forget(block)
        bad = set(host_blocks)
        self._ahead -= bad
        hit = [name for name, saved in self._saved.items() if not bad.isdisjoint(saved.host_blocks)]
        for request_id in hit:
            self.forget(request_id)
        return hit

    def filled_after(self, step: int) -> list[int]:
        return [block for block, filled in self._filled.items() if filled > step]

    def forget_all(self) -> None:
        for request_id in list(self._saved):
            self.forget(request_id)
        self._ahead.clear()
        self.pool.forget_all()

    def _run_of_before(self, keys: Sequence[Key]) -> list[int]:
        """Where these are, up to the first that was not there before this step. What this step stores may come from
        a load of the step before that failed: nobody has been told yet."""
        run = self.pool.find_run(keys)
        return list(itertools.takewhile(lambda block: self._filled[block] < self.step, run))

    def _make_use_of(self, blocks: Sequence[int]) -> None:
        used = self._ahead.intersection(blocks)
        self._ahead -= used
        self.blocks_used_of_ahead += len(used)

    def _fill(self, block: int, key: Key | None) -> None:
        self._filled[block] = self.step
        self._ahead.discard(block)
        if key is not None:
            self.pool.name(block, key)
