"""Who reaches what operators use: /admin and /debug, and where the metrics are answered."""

from __future__ import annotations

import ipaddress
import secrets
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from proxima_config.settings import AdminSettings
from proxima_server.errors import APIError, ErrorCode

ADMIN_LISTENER = "proxima_admin_listener"
"""Key in the state of connections that came in by admin.port."""

_PROTECTED = ("/admin", "/debug")
_OPERATORS = (*_PROTECTED, "/metrics")
_BOTH = ("/health", "/version", "/ui")
# A request from this machine is not from its operator if a proxy passed it on or a web page made a browser send it;
# except that our own page may look.
_SENT_FOR_OTHERS = ("forwarded", "x-real-ip", "via", "origin")
_OF_PROXIES = ("x-forwarded-", "x-envoy-")
"""How other such headers begin. The sidecar of a service mesh asks from a loopback address, and sends only these."""
_FETCH_SITE = "sec-fetch-site"
_LOCAL_NAMES = ("localhost", "")


class AdminAccess:
    """ASGI middleware in front of all routes."""

    def __init__(self, app: ASGIApp, settings: AdminSettings) -> None:
        self.app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            self._check(scope)
        except APIError as error:
            await error.response()(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        path = scope["path"]
        by_admin_port = bool(scope.get("state", {}).get(ADMIN_LISTENER))
        if self._settings.port and by_admin_port != _below(path, _OPERATORS) and not _on_both(path):
            raise APIError(ErrorCode.NOT_FOUND, f"There is no {scope['method']} {path} on this port")
        if _below(path, _PROTECTED):
            self._authorize(scope, by_admin_port=by_admin_port)

    def _authorize(self, scope: Scope, *, by_admin_port: bool) -> None:
        headers = Headers(scope=scope)
        if token := self._token():
            given = headers.get("authorization", "").removeprefix("Bearer ")
            if not secrets.compare_digest(given.encode(), token.encode()):
                raise APIError(
                    ErrorCode.INVALID_API_KEY,
                    "This endpoint needs the admin token: 'Authorization: Bearer TOKEN'",
                    headers={"WWW-Authenticate": "Bearer"},
                )
        elif _by_foreign_page(headers) if by_admin_port else not _is_operator_here(scope, headers):
            raise APIError(
                ErrorCode.PERMISSION_DENIED,
                "Without an admin token this endpoint answers on admin.port or to this machine only, and to no page",
            )

    def _token(self) -> str:
        """Raises APIError permission_denied when its file cannot be read: nobody gets in by that."""
        if not self._settings.token_file:
            return self._settings.token
        try:
            token = Path(self._settings.token_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise APIError(ErrorCode.PERMISSION_DENIED, "The file with the admin token cannot be read") from error
        if not token:
            raise APIError(ErrorCode.PERMISSION_DENIED, "The file with the admin token is empty")
        return token


def _on_both(path: str) -> bool:
    return path == "/" or _below(path, _BOTH)


def _below(path: str, parts: tuple[str, ...]) -> bool:
    return any(path == part or path.startswith(f"{part}/") for part in parts)


def _by_foreign_page(headers: Headers) -> bool:
    """Whether a web page that is not ours made a browser send the request: that may run where only operators are."""
    origin = headers.get("origin")
    other_origin = origin is not None and origin.partition("://")[2] != headers.get("host")
    return other_origin or headers.get(_FETCH_SITE, "none") not in ("same-origin", "none")


def _is_operator_here(scope: Scope, headers: Headers) -> bool:
    """Whether a person or script on this machine sent the request itself."""
    client = scope.get("client")
    if client is None or not _is_loopback(client[0]):
        return False
    if any(name in _SENT_FOR_OTHERS or name.startswith(_OF_PROXIES) for name in headers):
        return False
    # Browsers set this header, and no page can: a page of the same origin is ours.
    if _FETCH_SITE in headers and (scope["method"] != "GET" or headers[_FETCH_SITE] != "same-origin"):
        return False
    # A web page whose name was made to point here (DNS rebinding) still sends its own name.
    host = headers.get("host", "").rpartition("@")[2]
    name = host.partition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    return name in _LOCAL_NAMES or _is_loopback(name)


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
