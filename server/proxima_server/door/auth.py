"""Which key a request comes with, and refusal of those without one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proxima_config.api_keys import ApiKey
from proxima_config.hints import RequestClass
from proxima_server.door.keys import Keys
from proxima_server.errors import APIError, ErrorCode

ANONYMOUS = ApiKey(name="anonymous", sha256="0" * 64, request_class=RequestClass.PRIORITY)
"""Stands for the key of everybody where no keys are required. Nothing has this hash."""

STATE_KEY = "api_key"
"""Where the key of a request stands in its `state`."""

# Open to everybody: probes, scrapes and documentation say nothing about anybody's requests. Who may administrate is
# decided elsewhere.
_OPEN = frozenset({"/", "/metrics", "/version", "/docs", "/docs/oauth2-redirect", "/openapi.json", "/ping"})
_OPEN_BELOW = ("/health", "/admin/", "/debug/", "/ui/")

# RFC 6750 wants to be told how to authenticate.
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="proxima"'}


class Authenticate:
    """Refuses requests without a valid key where keys are required; notes the key in `request.state.api_key`, and says
    in each answer how much of its limits is left."""

    def __init__(
        self,
        app: ASGIApp,
        keys: Keys,
        limit_headers: Callable[[ApiKey], Mapping[str, str]],
        count_refusal: Callable[[], None],
    ) -> None:
        self.app = app
        self._keys = keys
        self._limit_headers = limit_headers
        self._count_refusal = count_refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._keys.required or _is_open(scope["path"]):
            await self.app(scope, receive, send)
            return
        try:
            key = self._key(Headers(scope=scope))
        except APIError as error:
            self._count_refusal()
            await error.response()(scope, receive, send)
            return
        scope.setdefault("state", {})[STATE_KEY] = key

        async def say_limits(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._limit_headers(key).items():
                    headers[name] = value
            await send(message)

        await self.app(scope, receive, say_limits)

    def _key(self, headers: Headers) -> ApiKey:
        secret = secret_in(headers)
        if not secret:
            raise _invalid("No API key was sent. Send it as 'Authorization: Bearer KEY'")
        key = self._keys.at(time.monotonic()).find(secret)
        if key is None:
            raise _invalid("The API key is not valid here")
        return key


def secret_in(headers: Headers) -> str:
    """The key that a client sends: OpenAI's clients as a bearer token, Anthropic's and Azure's in headers of theirs."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return (headers.get("x-api-key") or headers.get("api-key") or "").strip()


def key_of(state: Any) -> ApiKey:
    """The key of the request with this `state`."""
    found = getattr(state, STATE_KEY, None)
    return found if isinstance(found, ApiKey) else ANONYMOUS


def _is_open(path: str) -> bool:
    return path in _OPEN or path.startswith(_OPEN_BELOW)


def _invalid(message: str) -> APIError:
    return APIError(ErrorCode.INVALID_API_KEY, message, headers=_CHALLENGE)
