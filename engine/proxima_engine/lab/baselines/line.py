"""Those who wait, for rules that compare all of them in every step.

Kept from step to step by what views say has changed. Thousands wait, few come or go in a step, and to ask the view for
all of them costs more than the step. The figures that a rule compares lie in arrays for the same reason.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from proxima_engine.policy.view import SortKey, StepView, WaitingRequest

Figure = Callable[[WaitingRequest], float]
Figures = NDArray[np.float64]


class Line:
    """``figures``: what the rule wants to know of each request as it begins to wait."""

    def __init__(self, *figures: Figure) -> None:
        self._figures = figures
        self._keys: dict[str, SortKey] = {}
        self._clear()

    def _clear(self) -> None:
        self._keys.clear()
        self._order: list[tuple[SortKey, WaitingRequest]] = []
        """By key, which nobody shares."""
        self._values: Figures = np.empty((len(self._figures), 0))

    def follow(self, view: StepView) -> Figures:
        """Take in what has changed. Returns the figures, (figures, requests), requests in order of their keys."""
        changes = view.changes
        if changes.restart:
            self._clear()
        for request_id in changes.left:
            self._remove(request_id)
        for request in changes.arrived:
            self._remove(request.request_id)
            place = bisect_left(self._order, (request.key,))
            self._keys[request.request_id] = request.key
            self._order.insert(place, (request.key, request))
            self._values = np.insert(self._values, place, [figure(request) for figure in self._figures], axis=1)
        return self._values

    def smallest_first(self, view: StepView, ranks: Figures) -> Iterator[WaitingRequest]:
        """By rank, equal ones in order of their keys. Looks only as far as it is asked: a plan starts few of many.

        ``ranks``: one for each who waits, below infinity.
        """
        left = ranks.copy()
        for _ in self._order:
            place = left.argmin()
            left[place] = np.inf
            request = self._order[place][1]
            if request.request_id != view.denied:
                yield request

    def _remove(self, request_id: str) -> None:
        key = self._keys.pop(request_id, None)
        if key is not None:
            place = bisect_left(self._order, (key,))
            del self._order[place]
            self._values = np.delete(self._values, place, axis=1)
