"""Those who run and get one token in each step, sorted by how full their last block is."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, KeysView
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.request import Request


class Decoding:
    """Each step fills the last blocks of all by one token, so who stands together at one place goes on together: a step
    moves the places and touches no request. Of hundreds only those at the end of a block are asked for."""

    def __init__(self, block_size: int) -> None:
        self._places: list[dict[str, Request]] = [{} for _ in range(block_size)]
        """By tokens computed less steps made, modulo the size of a block."""
        self._place_of: dict[str, int] = {}
        self._steps = 0

    def __len__(self) -> int:
        return len(self._place_of)

    def __iter__(self) -> Iterator[Request]:
        return chain.from_iterable(place.values() for place in self._places)

    @property
    def members(self) -> KeysView[str]:
        """Ids of all of them."""
        return self._place_of.keys()

    def clear(self) -> None:
        for place in self._places:
            place.clear()
        self._place_of.clear()

    def add(self, request: Request) -> None:
        self._put(request, (request.num_computed_tokens - self._steps) % len(self._places))

    def remove(self, request_id: str) -> None:
        """Nothing happens where it is not there."""
        place = self._place_of.pop(request_id, None)
        if place is not None:
            del self._places[place][request_id]

    def step(self, scheduled: Container[str] | None) -> None:
        """A step was scheduled: of those ``scheduled`` one token more counts as computed, None for all."""
        self._steps += 1
        if scheduled is None:
            return
        for request_id in [each for each in self._place_of if each not in scheduled]:
            place = self._place_of[request_id]
            self._put(self._places[place].pop(request_id), (place - 1) % len(self._places))

    def at_block_end(self) -> Collection[Request]:
        """Those whose next token needs a block of its own."""
        return self._places[-self._steps % len(self._places)].values()

    def _put(self, request: Request, place: int) -> None:
        self._places[place][request.request_id] = request
        self._place_of[request.request_id] = place
