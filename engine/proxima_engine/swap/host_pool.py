"""Blocks of host memory, and which text the KV in them is of. No vLLM, no torch.

A block is held as long as somebody counts on it. What it was filled with stays findable after that, until the block is
needed for something else: blocks that were let go first are taken first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

Key = bytes
"""vLLM's hash of a block's tokens and of all before them."""


class HostPool:
    def __init__(self, blocks: int) -> None:
        self._holders = [0] * blocks
        self._idle: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))
        """Held by nobody, next to be taken first."""
        self._keys: dict[int, Key] = {}
        self._by_key: dict[Key, int] = {}

    @property
    def blocks_held(self) -> int:
        return len(self._holders) - len(self._idle)

    @property
    def blocks_kept(self) -> int:
        """Found by whoever asks for their text."""
        return len(self._keys)

    def find(self, key: Key) -> int | None:
        return self._by_key.get(key)

    def find_run(self, keys: Sequence[Key]) -> list[int]:
        """Where these are, one after the other, up to the first that is not there."""
        found: list[int] = []
        for key in keys:
            block = self._by_key.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def hold(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._holders[block] += 1
            self._idle.pop(block, None)

    def take(self, count: int) -> list[int] | None:
        """Blocks for something else, held; None if there are not so many that nobody holds."""
        if count > len(self._idle):
            return None
        taken = [self._idle.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self.forget(block)
            self._holders[block] = 1
        return taken

    def name(self, block: int, key: Key) -> None:
        """Let others find it by its text, if no other block holds that."""
        if self._by_key.setdefault(key, block) == block:
            self._keys[block] = key

    def forget(self, block: int) -> None:
        """Nobody finds it any more."""
        key = self._keys.pop(block, None)
        if key is not None:
            del self._by_key[key]
            if block in self._idle:
                self._idle.move_to_end(block, last=False)

    def forget_all(self) -> None:
        self._keys.clear()
        self._by_key.clear()

    def let_go(self, blocks: Sequence[int]) -> None:
        # Of a text the end goes first: without its beginning it is of no use.
        for block in reversed(blocks):
            self._holders[block] -= 1
            if not self._holders[block]:
                self._idle[block] = None
                if block not in self._keys:
                    self._idle.move_to_end(block, last=False)
