"""Which host blocks are to be brought nearer in a step, because somebody is going to resume. No vLLM, no torch."""

from __future__ import annotations

from collections.abc import Sequence


class FetchAhead:
    """Follows one who waits, and tells of each of its blocks once. The end of its text comes first: its beginning is
    what others may hold, so that it is on the device still."""

    def __init__(self, blocks_per_step: int, steps: int) -> None:
        """``steps``: of which the worker keeps what it has fetched."""
        self._per_step = blocks_per_step
        self._most = blocks_per_step * steps
        self._request_id = ""
        self._told = 0

    def of_step(self, request_id: str, host_blocks: Sequence[int]) -> tuple[int, ...]:
        """``host_blocks`` are held for it, in the order of its text."""
        if request_id != self._request_id:
            self._request_id, self._told = request_id, 0
        most = min(len(host_blocks), self._most)
        end = min(self._told + self._per_step, most)
        told = tuple(host_blocks[-1 - index] for index in range(self._told, end))
        self._told = end
        return told

    def drop(self, request_id: str) -> None:
        """It yields, so that from now on it waits for other blocks than before."""
        if request_id == self._request_id:
            self._request_id, self._told = "", 0
