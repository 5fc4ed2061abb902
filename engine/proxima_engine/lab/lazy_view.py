"""Those who wait and run, as a view lists them, found only as far as they are read.

Thousands wait where the lab is slow. Who starts one after the other reads the first of them, and who finds that it does
not fit reads nobody who runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, TypeVar

from proxima_engine.policy.view import StepView
from proxima_engine.scheduling.view_builder import ViewBuilder

_Request = TypeVar("_Request")


class LazyViewBuilder(ViewBuilder):
    """Adds methods and no state, so that a builder can be made one of these. Its views are for one plan only."""

    def build(self, now_s: float, step_s: float) -> StepView:
        view = super().build(now_s, step_s)
        denied = view.denied
        waiting = _Listed(
            len(self._queue) - (denied in self._waiting),
            lambda: (self._waiting[each.request_id] for each in self._queue if each.request_id != denied),
        )
        # Where the view's cached properties look first.
        vars(view).update(waiting=waiting, running=_Listed(len(self._scheduler.running), cache(view.list_running)))
        return view


class _Listed(Sequence[_Request]):
    def __init__(self, count: int, read: Callable[[], Iterable[_Request]]) -> None:
        self._count = count
        self._read = read

    def __iter__(self) -> Iterator[_Request]:
        return iter(self._read())

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]
