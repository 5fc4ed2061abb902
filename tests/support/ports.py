"""TCP ports that nobody listens on."""

from __future__ import annotations

import contextlib
import socket


def free_ports(count: int) -> list[int]:
    """Different ones, since all are held until all are found."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]
