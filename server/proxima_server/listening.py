"""The listening socket, taken before anything slow is loaded: a taken port is known at once."""

from __future__ import annotations

import errno
import os
import socket

from proxima_config.errors import ProximaError, UsageError

BACKLOG = 2048


class ListenError(ProximaError):
    """The address cannot be listened on; the message says why."""


class HostError(ListenError, UsageError):
    """What was given as host can be the name of none."""


def listen(host: str, port: int, flag: str = "") -> socket.socket:
    """A listening TCP socket; `port` 0 takes a free one. Raises ListenError, which advises about --[flag]port."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ListenError(f"cannot listen on host {host}: {error.strerror}") from error
    except UnicodeError as error:
        # An empty or overlong part between two dots, which Python finds before it asks for the name.
        raise HostError(f"{host} is no host name; choose another with --{flag}host") from error
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise ListenError(_explain(error, host, port, flag)) from error
    return listening


def url(listening: socket.socket, *, tls: bool = False) -> str:
    """Where clients find it."""
    host, port = listening.getsockname()[:2]
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _explain(error: OSError, host: str, port: int, flag: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is already in use; stop what uses it or choose another with --{flag}port"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} needs more rights than this user has; choose one above 1023"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine; choose another with --{flag}host"
    return f"cannot listen on port {port} of {host}: {os.strerror(error.errno or 0)}"
