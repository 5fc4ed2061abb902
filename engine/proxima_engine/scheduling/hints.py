"""What the door says about a request, read from vLLM's `extra_args`.

The only place that looks at request parameters, and only under the names of `proxima_config.hints`: a scheduler that
looked at others could come to know what a benchmark hides from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from proxima_config import hints
from proxima_config.hints import RequestClass

if TYPE_CHECKING:
    from vllm.v1.request import Request


@dataclass(frozen=True, slots=True)
class Hints:
    """Absent or senseless ones have their defaults: the door has checked them, and a request is worth more than one."""

    request_class: RequestClass = RequestClass.DEFAULT
    ttft_s: float | None = None
    """Seconds from arrival to the first token; None for the target of the settings."""
    total_s: float = math.inf
    """Seconds from arrival to the last token."""


_NONE = Hints()


def hints_of(request: Request) -> Hints:
    extra = getattr(request.sampling_params, "extra_args", None)
    if extra is None:
        return _NONE
    return Hints(_class(extra), _seconds(extra, hints.TTFT_BUDGET_S), _seconds(extra, hints.DEADLINE_S) or math.inf)


def _class(extra: Mapping[str, Any]) -> RequestClass:
    try:
        return RequestClass(extra.get(hints.CLASS, RequestClass.DEFAULT))
    except ValueError:
        return RequestClass.DEFAULT


def _seconds(extra: Mapping[str, Any], name: str) -> float | None:
    value = extra.get(name)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return float(value) if 0 < value < math.inf else None
