"""How many files, and so connections, the gateway may have open."""

from __future__ import annotations

import logging
import resource

logger = logging.getLogger(__name__)

WANTED = 65535
"""What vLLM's own server asks for."""


def raise_limit() -> None:
    """Raise the soft limit of this process as far as the hard one allows: 1,024, as usual for a login shell, would be
    the most connections at once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
