"""The API keys that are valid now, read again when their file changes."""

from __future__ import annotations

import hmac
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from proxima_config.api_keys import ApiKey, digest, parse_keys, read_keys_file, unique
from proxima_config.errors import ConfigError
from proxima_config.settings import AuthSettings

RELOAD_INTERVAL_S = 1.0
"""How often the file is looked at, at most: a revoked key is refused this much later."""

_logger = logging.getLogger(__name__)

Fingerprint = tuple[int, int, int]


class KeyRing:
    """Finds a key by what a client sends."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._by_digest = {key.sha256: key for key in keys}

    def __len__(self) -> int:
        return len(self._by_digest)

    def find(self, secret: str) -> ApiKey | None:
        # How long the look-up takes tells something about digests, which nobody can choose or turn back into keys.
        offered = digest(secret)
        key = self._by_digest.get(offered)
        return key if key is not None and hmac.compare_digest(key.sha256, offered) else None


class Keys:
    """Keys of the settings and of the keys file. A file that turns bad keeps the keys it had."""

    def __init__(self, settings: AuthSettings) -> None:
        self._path = Path(settings.api_keys_file) if settings.api_keys_file else None
        self._given = parse_keys(settings.api_keys)
        self._next_look_s = 0.0
        self.reloads_failed = 0
        self.required = bool(self._given) or self._path is not None
        """Whether requests need a key. A file without keys lets nobody in."""
        self._fingerprint = self._look()
        self.ring = self._read()

    def at(self, now_s: float) -> KeyRing:
        """The keys that are valid now."""
        if self._path is not None and now_s >= self._next_look_s:
            self._next_look_s = now_s + RELOAD_INTERVAL_S
            self._reload_if_changed()
        return self.ring

    def _reload_if_changed(self) -> None:
        found = self._look()
        if found == self._fingerprint:
            return
        # Noted first: a bad file is reported once, not every second.
        self._fingerprint = found
        try:
            self.ring = self._read()
        except ConfigError as error:
            self.reloads_failed += 1
            _logger.warning("the keys file is not valid; the %d keys of before stay: %s", len(self.ring), error)
        else:
            _logger.info("the keys file has changed: %d keys are valid now", len(self.ring))

    def _read(self) -> KeyRing:
        in_file = read_keys_file(self._path) if self._path is not None else ()
        return KeyRing(unique([*in_file, *self._given], str(self._path or "auth.api_keys")))

    def _look(self) -> Fingerprint | None:
        """What changes when the file does; Kubernetes replaces the folder of a mounted secret, not the file."""
        if self._path is None:
            return None
        try:
            status = os.stat(self._path)  # noqa: PTH116 - once a second on the way of requests
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size
