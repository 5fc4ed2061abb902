"""How large a request is, judged from its body before vLLM has rendered it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Where OpenAI's and Anthropic's requests carry what becomes the prompt.
_PROMPT_FIELDS = ("prompt", "messages", "input", "system", "instructions", "tools")
_OUTPUT_FIELDS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
# Images, sounds and files have lengths of their own, which the size of their encoding says nothing about.
_MEDIA_FIELDS = frozenset(
    {"image_url", "input_audio", "audio_url", "video_url", "image", "source", "file", "file_data"}
)

FIRST_TOKENS_PER_BYTE = 0.25
"""Until prompts have been counted: usual for English."""
_RATIO_WEIGHT = 0.05
"""Share of the newest prompt in the average."""
_MIN_LEARNED_BYTES = 200
"""Shorter prompts are mostly chat template."""


@dataclass(frozen=True)
class Size:
    sequences: int
    """Answers that the engine computes: prompts times choices."""
    prompt_bytes: int
    """UTF-8 bytes of text."""
    prompt_ids: int
    """Tokens given as ids."""
    declared_tokens: int | None
    """The cap on the output of all sequences together; None if the request sets none."""
    least_tokens: int = 0
    """What each answer has at the least, because the request says so."""


def size_of(body: Mapping[str, Any]) -> Size:
    """Never fails: what is not well-formed is refused elsewhere and counts as nothing here."""
    counts = [_count(body[name]) for name in _PROMPT_FIELDS if name in body]
    text = sum(bytes_ for bytes_, _ in counts)
    ids = sum(ids for _, ids in counts)
    sequences = _prompts(body.get("prompt")) * _positive(body.get("n"), 1)
    declared = next((value for name in _OUTPUT_FIELDS if (value := _positive(body.get(name), 0))), None)
    endless = body.get("ignore_eos") is True and not body.get("stop") and not body.get("stop_token_ids")
    least = declared if endless and declared is not None else _positive(body.get("min_tokens"), 0)
    return Size(sequences, text, ids, None if declared is None else declared * sequences, least)


class PromptLengths:
    """Estimates the tokens of prompts from their bytes, at the ratio that the prompts so far had."""

    def __init__(self) -> None:
        self._tokens_per_byte = FIRST_TOKENS_PER_BYTE

    def estimate(self, size: Size) -> int:
        return max(1, size.prompt_ids + round(size.prompt_bytes * self._tokens_per_byte))

    def learn(self, size: Size, prompt_tokens: int) -> None:
        """A prompt of that size had so many tokens."""
        if size.prompt_bytes >= _MIN_LEARNED_BYTES and prompt_tokens > size.prompt_ids:
            ratio = min(1.0, (prompt_tokens - size.prompt_ids) / size.prompt_bytes)
            self._tokens_per_byte += _RATIO_WEIGHT * (ratio - self._tokens_per_byte)


def _count(value: Any) -> tuple[int, int]:
    """Bytes of text and number of token ids in a part of a body, however deep."""
    text = ids = 0
    rest = [value]
    while rest:
        part = rest.pop()
        if isinstance(part, str):
            text += len(part) if part.isascii() else len(part.encode(errors="replace"))
        elif isinstance(part, Mapping):
            rest += [inner for name, inner in part.items() if name not in _MEDIA_FIELDS]
        elif isinstance(part, list):
            if part and isinstance(part[0], int):
                ids += len(part)
            else:
                rest += part
    return text, ids


def _prompts(prompt: Any) -> int:
    """A list of texts or of lists of ids is several prompts; a list of ids is one."""
    several = isinstance(prompt, Sequence) and not isinstance(prompt, str) and len(prompt) > 0
    return len(prompt) if several and not isinstance(prompt[0], int) else 1


def _positive(value: Any, otherwise: int) -> int:
    valid = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return min(value, 1_000_000) if valid else otherwise
