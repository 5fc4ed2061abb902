"""The waiting queue that vLLM's scheduler reads, able to show it only what the plan of this step names."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request

from proxima_engine.policy.view import SortKey


class UnknownRequestError(LookupError):
    """A plan names a request that does not wait, or names one twice."""


class PlannedQueue(RequestQueue):
    """Waiting requests in order of (priority, arrival), optionally narrowed to a plan.

    Between :meth:`follow` and :meth:`release` the queue is *frozen*: `bool`, `peek` and `pop` show the planned
    requests in planned order and nobody else, which is how vLLM's scan comes to pass a request that does not fit.
    `len` and iteration always cover everybody who waits, because vLLM counts with them.

    A preempted request returns to the place its arrival gives it, so it never loses its turn (vllm#41951).
    """

    def __init__(self, *, by_priority: bool) -> None:
        self._by_priority = by_priority
        # A sorted list rather than a heap: the policy reads the queue in order in every step, and arrivals come
        # almost sorted, so that an insertion moves almost nothing.
        self._entries: list[tuple[SortKey, Request]] = []
        self._keys: dict[str, SortKey] = {}
        self._planned: deque[Request] | None = None
        self._touched: set[str] = set()

    def take_touched(self) -> set[str]:
        """Ids of all who came or left, or both, since the last call."""
        touched, self._touched = self._touched, set()
        return touched

    def find(self, request_id: str) -> Request | None:
        """The request of that id if it waits."""
        return self._entries[self._index(request_id)][1] if request_id in self._keys else None

    def key(self, request: Request) -> SortKey:
        return (request.priority if self._by_priority else 0, request.arrival_time, request.request_id)

    def entries(self) -> Iterator[tuple[SortKey, Request]]:
        """Everybody who waits with their keys, in order, whatever the plan."""
        return iter(self._entries)

    def follow(self, order: Iterable[str]) -> None:
        """Freeze: show only these requests, in this order. Raises UnknownRequestError and changes nothing."""
        planned: deque[Request] = deque()
        seen: set[str] = set()
        for request_id in order:
            if request_id not in self._keys or request_id in seen:
                raise UnknownRequestError(request_id)
            seen.add(request_id)
            planned.append(self._entries[self._index(request_id)][1])
        self._planned = planned

    def release(self) -> list[str]:
        """Unfreeze; returns the planned requests that the scan did not take."""
        left = [request.request_id for request in self._planned or ()]
        self._planned = None
        return left

    def add_request(self, request: Request) -> None:
        key = self.key(request)
        self._keys[request.request_id] = key
        self._touched.add(request.request_id)
        insort(self._entries, (key, request), key=lambda entry: entry[0])

    def prepend_request(self, request: Request) -> None:
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.add_request(request)

    def peek_request(self) -> Request:
        return self._entries[0][1] if self._planned is None else self._planned[0]

    def pop_request(self) -> Request:
        request = self.peek_request() if self._planned is None else self._planned.popleft()
        self._drop(request.request_id)
        return request

    def remove_request(self, request: Request) -> None:
        self.remove_requests([request])

    def remove_requests(self, requests: Iterable[Request]) -> None:
        gone = {request.request_id for request in requests if request.request_id in self._keys}
        for request_id in gone:
            self._drop(request_id)
        if gone and self._planned is not None:
            self._planned = deque(request for request in self._planned if request.request_id not in gone)

    def __bool__(self) -> bool:
        return bool(self._entries if self._planned is None else self._planned)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        return (request for _, request in self._entries)

    def _index(self, request_id: str) -> int:
        # Alone it is right before its entry. Without a function for keys this is several times as fast.
        return bisect_left(self._entries, (self._keys[request_id],))

    def _drop(self, request_id: str) -> None:
        del self._entries[self._index(request_id)]
        del self._keys[request_id]
        self._touched.add(request_id)
