"""The fail-open boundary: a policy error costs one step of planning, never a request."""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

_logger = logging.getLogger(__name__)
_Result = TypeVar("_Result")


class PolicyState(StrEnum):
    OK = "ok"
    DEGRADED = "degraded"
    """The last plan failed; that step went by arrival order."""
    NATIVE = "native"
    """Too many failures in a row, or not for this engine; arrival order until restart."""


class PolicyGuard:
    """Runs the planning part of a step; after `max_failures` failures in a row it stays off."""

    def __init__(self, max_failures: int) -> None:
        self._max_failures = max_failures
        self._failures_in_a_row = 0
        self.failures_total = 0
        self.last_error = ""
        self._off = False
        self._asked_in_vain = False

    def switch_off(self, reason: str) -> None:
        """Arrival order from now on; nothing has failed."""
        self._off = True
        self.last_error = reason

    @property
    def state(self) -> PolicyState:
        if self._off or self._failures_in_a_row >= self._max_failures:
            return PolicyState.NATIVE
        return PolicyState.DEGRADED if self._failures_in_a_row else PolicyState.OK

    def attempt(self, planning: Callable[[], _Result]) -> _Result | None:
        """The result of planning, or None when it failed or is switched off."""
        if self.state is PolicyState.NATIVE:
            return None
        try:
            result = planning()
        except Exception as error:  # noqa: BLE001  the marked fail-open boundary (DESIGN: "Fail open")
            self._record(error)
            return None
        self._failures_in_a_row = 0
        return result

    def ask(self, asking: Callable[[], _Result]) -> _Result | None:
        """What a policy tells those who look, or None. No plan hangs on it: a failure is logged once, no more."""
        if self.state is PolicyState.NATIVE:
            return None
        try:
            return asking()
        except Exception:  # the same boundary: who looks must not stop the engine
            if not self._asked_in_vain:
                _logger.exception("scheduling policy cannot tell when requests start")
            self._asked_in_vain = True
            return None

    def _record(self, error: Exception) -> None:
        self._failures_in_a_row += 1
        self.failures_total += 1
        self.last_error = f"{type(error).__name__}: {error}"[:200]
        _logger.error("scheduling policy failed; this step goes by arrival order", exc_info=error)
        if self.state is PolicyState.NATIVE:
            _logger.critical(
                "scheduling policy failed %d times in a row: native order until restart",
                self._failures_in_a_row,
            )
