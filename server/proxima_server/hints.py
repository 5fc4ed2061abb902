"""What the door tells the scheduler about a request, and that nobody else tells it.

`request.state.hints` holds the hints of one request. Whatever decides about it on its way in (key, tier, deadline)
changes them there; they are written into the body where it is handed to vLLM, after all that a client sent under the
prefix has been taken out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import Request

from proxima_config import hints as keys
from proxima_config.hints import RequestClass

FIELD = "vllm_xargs"
"""Of a request's body: what vLLM passes on to its scheduler."""


@dataclass(slots=True)
class Hints:
    request_class: RequestClass = RequestClass.DEFAULT
    ttft_budget_s: float | None = None
    deadline_s: float | None = None
    tenant: str | None = None
    weight: float | None = None
    trust_client: bool = False
    """What the client sent under the prefix goes before these."""

    def xargs(self) -> dict[str, str | float]:
        """The hints as vLLM carries them."""
        values: dict[str, str | float | None] = {
            keys.CLASS: self.request_class.value,
            keys.TTFT_BUDGET_S: self.ttft_budget_s,
            keys.DEADLINE_S: self.deadline_s,
            keys.TENANT: self.tenant,
            keys.WEIGHT: self.weight,
        }
        return {key: value for key, value in values.items() if value is not None}


def hints_of(request: Request) -> Hints:
    """The hints of `request`, which may be changed until vLLM gets it."""
    if not hasattr(request.state, "hints"):
        request.state.hints = Hints()
    hints: Hints = request.state.hints
    return hints


def write(body: dict[str, Any], hints: Hints) -> None:
    """Put `hints` into `body`, and others only of trusted clients. What is not an object is left for validation to
    refuse."""
    given = body.get(FIELD)
    if given is None:
        given = {}
    if isinstance(given, dict):
        others = {key: value for key, value in given.items() if not key.startswith(keys.PREFIX)}
        body[FIELD] = {**others, **hints.xargs(), **(given if hints.trust_client else {})}
