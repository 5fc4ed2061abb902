"""The server that is measured: where it is, and how a request to it looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from proxima_bench.loads import Api, Lengths, Load
from proxima_bench.workload import Message, Turn
from proxima_config.errors import UsageError
from proxima_config.forced_length import FIELD

_PATHS = {Api.CHAT: "/v1/chat/completions", Api.COMPLETIONS: "/v1/completions", Api.GENERATE: "/generate"}


@dataclass(frozen=True)
class Target:
    root: str
    """Base URL without /v1 and without a slash at the end."""
    model: str | None = None
    api_key: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def path(self, api: Api) -> str:
        return self.root + _PATHS[api]


def root_of(url: str, flag: str = "--url") -> str:
    """The base of a URL given with or without /v1. Raises UsageError that names the flag."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise UsageError(f"{flag} must look like http://host:port with a port up to 65535, not {url}")
    return url.rstrip("/").removesuffix("/v1")


def body(load: Load, model: str | None, history: Sequence[Message], turn: Turn) -> dict[str, Any]:
    """One request. ``history`` are the messages of the conversation so far, answers included."""
    messages = [*history, *turn.messages]
    made: dict[str, Any] = {"stream": load.stream, "max_tokens": load.cap_tokens}
    if load.api is Api.CHAT:
        made["messages"] = messages
    else:
        made["prompt"] = "\n".join(_plain(message) for message in messages)
    if load.api is not Api.GENERATE:
        made["model"] = model
        if load.stream:
            made["stream_options"] = {"include_usage": True}
    if load.temperature is not None:
        made["temperature"] = load.temperature
    if load.lengths is Lengths.CAP:
        made |= {"max_tokens": turn.output_tokens, "ignore_eos": True}
    elif load.lengths is Lengths.FORCED:
        made["vllm_xargs"] = {FIELD: turn.output_tokens}
    return _merged(made, load.extra_body)


def _merged(made: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """Extra fields win; the objects in them join ours."""
    joined = {name: {**made[name], **value} for name, value in extra.items() if _both_objects(made.get(name), value)}
    return {**made, **extra, **joined}


def _both_objects(ours: object, theirs: object) -> bool:
    return isinstance(ours, dict) and isinstance(theirs, dict)


def _plain(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))
