"""Which requests have KV in host memory, and where: the books of the scheduler's half. No vLLM, no torch.

A request keeps its host blocks after it has resumed, because KV of full blocks never changes: if it yields again only
what is new has to be copied. Such blocks are given up, oldest first, when somebody else needs the room.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class _Saved:
    tokens: int
    """Of the request's text, from the first on, whose KV is on the host."""
    host_blocks: list[int]
    resumed: bool = False
    """It runs, and its blocks on the device are as good."""


@dataclass(frozen=True, slots=True)
class Copy:
    device_blocks: tuple[int, ...]
    host_blocks: tuple[int, ...]


class SwapLedger:
    def __init__(self, host_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self._free = list(range(host_blocks - 1, -1, -1))
        self._saved: dict[str, _Saved] = {}
        """Those who resumed first stand first."""
        self.blocks_total = host_blocks

    @property
    def blocks_used(self) -> int:
        return self.blocks_total - len(self._free)

    @property
    def blocks_in_reach(self) -> int:
        """Free, or of requests that run and can do without."""
        return len(self._free) + sum(len(saved.host_blocks) for saved in self._saved.values() if saved.resumed)

    def save(self, request_id: str, tokens: int, device_blocks: Sequence[int]) -> Copy | None:
        """Give a request that yields its place on the host; returns what must be copied there, None if it has no room.

        ``device_blocks`` hold its text from the first token on, of which ``tokens`` are computed.
        """
        needed = math.ceil(tokens / self._block_size)
        old = self._saved.pop(request_id, None)
        host = old.host_blocks if old is not None else []
        kept = min(old.tokens, tokens) // self._block_size if old is not None else 0
        self._release(host[needed:])
        del host[needed:]
        missing = needed - len(host)
        if not self._make_room(missing):
            self._release(host)
            return None
        host += [self._free.pop() for _ in range(missing)]
        self._saved[request_id] = _Saved(tokens, host)
        return Copy(tuple(device_blocks[kept:needed]), tuple(host[kept:needed]))

    def saved_tokens(self, request_id: str) -> int:
        """Tokens of a request that yielded, from the first on, that need not be computed again; 0 if it runs."""
        saved = self._saved.get(request_id)
        return 0 if saved is None or saved.resumed else saved.tokens

    def resume(self, request_id: str, first_token: int, end_token: int, device_blocks: Sequence[int]) -> Copy | None:
        """The request runs again, in these blocks. Returns what must be copied into them: the tokens from
        ``first_token``, which begins a block, up to ``end_token``. None if that is nothing."""
        saved = self._saved.pop(request_id, None)
        if saved is None:
            return None
        saved.resumed = True
        self._saved[request_id] = saved
        if first_token >= end_token:
            # All that was saved is on the device, or is computed again. The block in which it ends may be shared by
            # now, and hold more than it did.
            return None
        first, end = first_token // self._block_size, math.ceil(end_token / self._block_size)
        return Copy(tuple(device_blocks[first:end]), tuple(saved.host_blocks[first:end]))

    def forget(self, request_id: str) -> None:
        """The request has ended, or its copies are not to be trusted."""
        saved = self._saved.pop(request_id, None)
        if saved is not None:
            self._release(saved.host_blocks)

    def forget_all(self) -> None:
        for request_id in list(self._saved):
            self.forget(request_id)

    def _make_room(self, blocks: int) -> bool:
        if blocks > self.blocks_in_reach:
            return False
        if blocks > len(self._free):
            for request_id in [name for name, saved in self._saved.items() if saved.resumed]:
                self.forget(request_id)
                if blocks <= len(self._free):
                    break
        return blocks <= len(self._free)

    def _release(self, host_blocks: Sequence[int]) -> None:
        self._free += host_blocks
