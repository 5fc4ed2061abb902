"""Pictures, sound and films in a prompt: which of its parts they are.

vLLM says of a part that the model cannot take what kind it is, but not which one, and it fetches a picture before it
finds out that the model only reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from proxima_server.errors import APIError, ErrorCode

MODALITIES: Mapping[str, str] = {
    "image_url": "image",
    "image_embeds": "image",
    "image_pil": "image",
    "input_image": "image",
    "image": "image",
    "audio_url": "audio",
    "audio_embeds": "audio",
    "input_audio": "audio",
    "video_url": "video",
    "video_embeds": "video",
}
"""By type of a part, in the APIs of OpenAI and Anthropic and in vLLM's additions to them."""
_FIELDS = ("messages", "input")
_HOLDERS = ("content", "output")
_UNKNOWN_TYPE = re.compile(r"Unsupported chat content part type: '(.*?)'\.")
_LIMIT = re.compile(r"At most (\d+) ")
_NESTS = "tool_result"
"""A block of Anthropic's API whose content has parts of its own."""


def refuse(body: Mapping[str, Any]) -> None:
    """Raises APIError naming the first part of a prompt that a model of text cannot take."""
    for name, part in _parts(body):
        kind = _kind(part)
        if kind in MODALITIES:
            rule = f"the served model takes text only, no {kind} (it is not a multimodal model)"
            raise APIError(ErrorCode.INVALID_VALUE, f"Invalid '{name}': {rule}", param=name)


def named(param: str, message: str, body: Mapping[str, Any]) -> str | None:
    """The part of the prompt that an error of vLLM is about: its `param` is a modality or a type of a part, or `type`
    itself. None where it is about something else."""
    if param in body:
        return None
    if param == "type":
        unknown = _UNKNOWN_TYPE.match(message)
        wanted = unknown[1] if unknown else None
        return next((f"{name}.type" for name, part in _parts(body) if _kind(part) == wanted), None)
    found = [name for name, part in _parts(body) if param in (kind := _kind(part), MODALITIES.get(kind or ""))]
    # As many as it says are no fault.
    limit = _LIMIT.match(message)
    first = int(limit[1]) if limit else 0
    return found[first] if first < len(found) else None


def _parts(body: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The parts of a prompt with their names, such as ``messages[0].content[1]``, in its order."""
    for field in _FIELDS:
        for item_name, item in _items(field, body.get(field)):
            for name, part in _held(item_name, item):
                yield name, part
                if part.get("type") == _NESTS:
                    yield from _held(name, part)


def _held(name: str, holder: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for field in _HOLDERS:
        yield from _items(f"{name}.{field}", holder.get(field))


def _items(name: str, array: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(array, list):
        yield from ((f"{name}[{index}]", item) for index, item in enumerate(array) if isinstance(item, Mapping))


def _kind(part: Mapping[str, Any]) -> str | None:
    """A part's type; as for vLLM it may leave it out, and one with a `uuid` is what its fields say."""
    kind = part.get("type")
    if kind is None or part.get("uuid") is not None:
        kind = next((name for name in MODALITIES if name in part), kind)
    return kind if isinstance(kind, str) else None
