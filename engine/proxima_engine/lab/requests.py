"""What the lab sends: requests, and the workload that holds them."""

from __future__ import annotations

from dataclasses import dataclass, replace

PREFIX_BLOCK_TOKENS = 512
"""Prompt tokens that one hash id of a prefix stands for: the convention of Mooncake's published traces."""

DEFAULT_CAP_TOKENS = 1024
"""Declared `max_tokens` of requests that do not say."""


@dataclass(frozen=True, slots=True)
class LabRequest:
    request_id: str
    arrival_s: float
    """Seconds since the start of the run."""
    input_tokens: int
    output_tokens: int
    """True length of the answer. The lab ends the request there; no scheduler sees it except those that cheat."""
    cap_tokens: int
    """Declared `max_tokens`, which every scheduler sees; never below ``output_tokens``."""
    prefix_hash_ids: tuple[int, ...] = ()
    """One id for each ``PREFIX_BLOCK_TOKENS`` of the prompt, from its beginning; equal ids mean equal tokens.
    What the ids do not reach is the request's own."""
    request_class: str = ""
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    requests: tuple[LabRequest, ...]
    """In order of arrival."""
    concurrency: int | None = None
    """In a closed loop: so many are in flight, the next starts when one ends, and arrival times mean nothing."""

    def faster(self, factor: float) -> Workload:
        """The same requests arriving ``factor`` times as fast."""
        requests = tuple(replace(each, arrival_s=each.arrival_s / factor) for each in self.requests)
        return replace(self, requests=requests)
