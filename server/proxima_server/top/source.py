"""The documents of a gateway's `/debug/live`, from here or from afar."""

from __future__ import annotations

import http.client
import ipaddress
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

from proxima_config.errors import ProximaError, UsageError

TIMEOUT_S = 10.0
"""A gateway that is silent for so long, where a document comes each second, is gone."""
_PATH = "/debug/live"


class SourceError(ProximaError):
    """The gateway does not answer, or not with what was asked for; trying again may help."""


class RefusedError(ProximaError):
    """The gateway does not want to be watched by us; trying again will not help."""


class Source:
    def __init__(self, url: str, token: str) -> None:
        """Raises UsageError unless `url` is one of HTTP."""
        try:
            parts = urllib.parse.urlsplit(url)
            host = parts.hostname if parts.scheme in ("http", "https") and parts.port != 0 else None
        except ValueError:
            host = None
        if not host:
            raise UsageError(f"URL: {url!r} must be like http://127.0.0.1:8000")
        self._url = url.rstrip("/") + _PATH
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        # A proxy of the environment is for the outside world.
        proxies: dict[str, str] | None = {} if _is_here(host) else None
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))

    def once(self) -> dict[str, Any]:
        """The document of now. Raises SourceError, RefusedError."""
        with self._open("application/json") as response:
            return self._parse(self._read(response))

    def follow(self) -> Iterator[dict[str, Any]]:
        """A document each second, until the gateway ends. Raises SourceError, RefusedError."""
        with self._open("text/event-stream") as response:
            while line := self._read(response, line=True):
                if line.startswith(b"data: "):
                    yield self._parse(line.removeprefix(b"data: "))

    def _open(self, accept: str) -> http.client.HTTPResponse:
        request = urllib.request.Request(self._url, headers={**self._headers, "Accept": accept})  # noqa: S310 - checked
        try:
            response: http.client.HTTPResponse = self._opener.open(request, timeout=TIMEOUT_S)
        except urllib.error.HTTPError as error:
            with error:
                message = f"{self._url}: {error.code} {_message(error.read())}"
            if error.code in (401, 403, 404):
                raise RefusedError(message) from error
            raise SourceError(message) from error
        except (urllib.error.URLError, OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            hint = (
                "; is `proxima serve` running, and on this port?" if isinstance(reason, ConnectionRefusedError) else ""
            )
            raise SourceError(f"{self._url}: {reason}{hint}") from error
        return response

    def _read(self, response: http.client.HTTPResponse, *, line: bool = False) -> bytes:
        try:
            return response.readline() if line else response.read()
        except (OSError, http.client.HTTPException) as error:
            raise SourceError(f"{self._url}: the connection broke: {error}") from error

    def _parse(self, text: bytes) -> dict[str, Any]:
        try:
            document = json.loads(text)
        except ValueError as error:
            raise RefusedError(f"{self._url}: this is no Proxima gateway") from error
        if not isinstance(document, dict) or "version" not in document:
            raise RefusedError(f"{self._url}: this is no Proxima gateway")
        return document


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "no message"
