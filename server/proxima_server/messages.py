"""The messages of a chat, checked before vLLM's models see them.

Those models accept any role, for templates that know more of them, and messages without content; what they refuse, they
refuse for each member of a large union at once, or for a part of an iterator, whose place nobody can tell any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from proxima_server.validation import missing, wrong

ROLES = ("developer", "system", "user", "assistant", "tool", "function")
_SPEAK = frozenset({"developer", "system", "user"})
"""Whose messages are nothing without content."""
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})


@dataclass(frozen=True)
class Chat:
    """What a message may say."""

    template_knows: Callable[[str], bool]
    """Whether the model's chat template has a word for a role that OpenAI's API does not know."""
    part_types: Collection[str]
    """Types of the parts of a content."""


def check(messages: Any, chat: Chat | None) -> None:
    """Raises APIError naming the first thing in the `messages` of a request that is no chat.

    `chat` is None where other code checks roles and types. What is no array of objects is left to the models.
    """
    if not isinstance(messages, list):
        return
    if not messages:
        raise wrong("messages", "it must have at least one message", messages)
    for index, message in enumerate(messages):
        # Messages of OpenAI's Harmony format say by `author` who speaks.
        if isinstance(message, Mapping) and "author" not in message:
            _check_message(f"messages[{index}]", message, chat)


def _check_message(name: str, message: Mapping[str, Any], chat: Chat | None) -> None:
    if "role" not in message:
        raise missing(f"{name}.role")
    role = message["role"]
    if not isinstance(role, str):
        raise wrong(f"{name}.role", "it must be a string", role)
    if chat is not None and role not in ROLES and not chat.template_knows(role):
        raise wrong(f"{name}.role", _one_of(ROLES), role)
    content = message.get("content")
    if content is None and role in _SPEAK:
        if "content" not in message:
            raise missing(f"{name}.content")
        raise wrong(f"{name}.content", "it must be a string or an array", None)
    if content is not None and not isinstance(content, str | list):
        raise wrong(f"{name}.content", "it must be a string or an array", content)
    if isinstance(content, list):
        for index, part in enumerate(content):
            _check_part(f"{name}.content[{index}]", part, chat)
    if message.get("tool_calls") is not None:
        _check_calls(f"{name}.tool_calls", message["tool_calls"])


def _check_part(name: str, part: Any, chat: Chat | None) -> None:
    if isinstance(part, str):
        return
    if not isinstance(part, Mapping):
        raise wrong(name, "it must be an object", part)
    kind = part.get("type")
    if kind is not None and not isinstance(kind, str):
        raise wrong(f"{name}.type", "it must be a string", kind)
    if chat is not None and kind is not None and kind not in chat.part_types:
        raise wrong(f"{name}.type", _one_of(chat.part_types), kind)
    # vLLM goes by the fields of a part of media that says no type.
    if chat is not None and kind is None and not part.keys() & {*chat.part_types} - _TEXT_PARTS:
        raise missing(f"{name}.type")
    if kind in _TEXT_PARTS:
        _require_string(name, part, "text")


def _check_calls(name: str, calls: Any) -> None:
    if not isinstance(calls, list):
        raise wrong(name, "it must be an array", calls)
    for index, call in enumerate(calls):
        here = f"{name}[{index}]"
        if not isinstance(call, Mapping):
            raise wrong(here, "it must be an object", call)
        if call.get("type") == "custom":
            continue
        function = call.get("function")
        if "function" not in call:
            raise missing(f"{here}.function")
        if not isinstance(function, Mapping):
            raise wrong(f"{here}.function", "it must be an object", function)
        _require_string(f"{here}.function", function, "name")
        _require_string(f"{here}.function", function, "arguments")


def _one_of(words: Collection[str]) -> str:
    *others, last = map(repr, words)
    return f"it must be {', '.join(others)} or {last}"


def _require_string(name: str, value: Mapping[str, Any], field: str) -> None:
    if field not in value:
        raise missing(f"{name}.{field}")
    if not isinstance(value[field], str):
        raise wrong(f"{name}.{field}", "it must be a string", value[field])
