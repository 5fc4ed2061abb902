"""What the door tells the scheduler about a request: flat scalars in vLLM's `extra_args` (`vllm_xargs` in a body).

All are optional; a request without them is scheduled by the settings alone. The door strips whatever a client sends
under `PREFIX`, unless the key allows it.
"""

from __future__ import annotations

from enum import StrEnum

PREFIX = "proxima_"

CLASS = "proxima_class"
"""One of RequestClass."""
TTFT_BUDGET_S = "proxima_ttft_budget_s"
"""Seconds from arrival to the first token that this request is promised, instead of `scheduler.ttft_s`."""
DEADLINE_S = "proxima_deadline_s"
"""Seconds from arrival to its last token; a target for the order, not a reason to abort."""
TENANT = "proxima_tenant"
"""Who pays for it. Tenants take turns at the door; the scheduler does not tell them apart."""
WEIGHT = "proxima_weight"
"""Share of the tenant at the door when tenants compete, against 1 of others."""


class RequestClass(StrEnum):
    """Classes of urgency. OpenAI's `service_tier` maps to the first, second and last."""

    PRIORITY = "priority"
    """Before all others."""
    DEFAULT = "default"
    LONG = "long"
    """As urgent as the default, but all of them together hold at most a part of the pool while others wait."""
    FLEX = "flex"
    """After all others, within the age bound."""
