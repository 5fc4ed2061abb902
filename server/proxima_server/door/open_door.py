"""A warning that cannot be overlooked: everybody who reaches the address may use the engine."""

from __future__ import annotations

import ipaddress
import logging

from proxima_config.settings import ProximaSettings

_logger = logging.getLogger(__name__)


def warn(settings: ProximaSettings, *, keys_required: bool) -> None:
    """Unless keys are required, or only this machine reaches the address."""
    host = settings.server.host
    if keys_required or is_local(host):
        return
    for line in (
        "!" * 88,
        f"{host} can be reached from other machines, and no API keys are set:",
        "EVERYBODY WHO REACHES IT MAY USE THE ENGINE. Make a key with `proxima key new NAME` and",
        "set auth.api_keys_file, or listen on 127.0.0.1 behind a proxy that checks who asks.",
        "!" * 88,
    ):
        _logger.warning("%s", line)


def is_local(host: str) -> bool:
    """Whether `host` is an address of this machine that no other can reach."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
