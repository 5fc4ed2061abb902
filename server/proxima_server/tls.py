"""HTTPS whose certificate may be renewed while it serves."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl

from proxima_config.errors import ConfigError
from proxima_config.settings import ServerSettings

_logger = logging.getLogger(__name__)

CHECK_S = 10.0

_Stamp = tuple[tuple[int, int, int], ...]


class Certificate:
    """The certificate and key of the server; connections made after a reload see the new ones."""

    def __init__(self, cert_file: str, key_file: str) -> None:
        """Raises ConfigError when the files do not hold a certificate and its key."""
        self._files = (cert_file, key_file)
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.set_alpn_protocols(["http/1.1"])
        try:
            self._loaded = self._stamp()
            self._load()
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"server.tls_cert_file {cert_file} with key {key_file}: {_reason(error)}") from error

    async def watch(self, check_s: float = CHECK_S) -> None:
        """Load the files again whenever they have changed, until cancelled."""
        while True:
            await asyncio.sleep(check_s)
            try:
                self.reload_if_changed()
            except (OSError, ssl.SSLError) as error:
                _logger.error("the changed certificate is not used: %s", _reason(error))  # noqa: TRY400 - not a bug

    def reload_if_changed(self) -> bool:
        """Returns whether they had changed; raises OSError or ssl.SSLError, and keeps the old ones, if they are bad."""
        now = self._stamp()
        if now == self._loaded:
            return False
        # Said once for each change, good or bad.
        self._loaded = now
        self._load()
        _logger.info("loaded the changed certificate %s", self._files[0])
        return True

    def _load(self) -> None:
        # Tried apart first: a key that does not match would leave the live context with half of each.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*self._files, password=_no_password)
        self.context.load_cert_chain(*self._files, password=_no_password)

    def _stamp(self) -> _Stamp:
        # Follows links: Kubernetes renews a mounted secret by turning one.
        stats = [os.stat(file) for file in self._files]  # noqa: PTH116 - same call, follows links
        return tuple((each.st_mtime_ns, each.st_ino, each.st_size) for each in stats)


def certificate(settings: ServerSettings) -> Certificate | None:
    """None where HTTPS is not asked for."""
    return Certificate(settings.tls_cert_file, settings.tls_key_file) if settings.tls_cert_file else None


def _no_password() -> str:
    """Instead of a prompt on the terminal, which would wait for ever."""
    raise ssl.SSLError("the key is encrypted; only keys without a passphrase are taken")


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
