"""The beginning of a prompt as it may stand in a log: cut, and without what looks like a secret."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

BLOT = "[…]"

_LOOKAHEAD_CHARS = 2000
"""What is read beyond the cut, so that a secret which the cut would halve is still recognised."""

_SECRETS = re.compile(
    r"""
      -----BEGIN\ [A-Z ]+-----.*?(?:-----END\ [A-Z ]+-----|$)        # PEM
    | data:[\w/+.-]+;base64,[A-Za-z0-9+/=]*                         # embedded files
    | (?<=://)[^/\s:@]+:[^/\s@]+(?=@)                               # user:password@ of a URL
    | [\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+                                  # e-mail addresses
    | (?i:\b(?:bearer|basic)\s+)[\w.~+/=-]{8,}                      # authorization
    | (?i:\b(?:pass(?:word|wd)?|secret|token|api[_-]?key)\b["']?\s*[:=]\s*["']?)[^\s"',;]+
    | \b(?:sk|pk|rk|ghp|gho|ghs|hf|xox[abp]|glpat|AKIA|AIza|eyJ)[\w.-]{12,}  # keys and tokens of well-known makers
    | (?<!\w)\+?\d(?:[ .()/-]{0,2}\d){5,}(?!\w)                         # telephone, card and account numbers
    | \b[A-Za-z0-9+/_-]{32,}={0,2}                                  # anything long and random
    """,
    re.VERBOSE | re.DOTALL,
)


def prompt_excerpt(body: Mapping[str, Any], chars: int) -> str | None:
    """At most `chars` characters of the text that `body` sends to the model; of a conversation its newest message."""
    parts: list[str] = []
    length = 0
    for text in _texts(body):
        parts.append(text[: chars + _LOOKAHEAD_CHARS])
        length += len(parts[-1])
        if length > chars + _LOOKAHEAD_CHARS:
            break
    if not parts:
        return None
    return _SECRETS.sub(BLOT, " ".join(parts))[:chars]


def _texts(body: Mapping[str, Any]) -> Iterator[str]:
    messages = body.get("messages")
    if isinstance(messages, list) and messages and isinstance(messages[-1], dict):
        yield from _of_content(messages[-1].get("content"))
    for name in ("prompt", "input"):
        yield from _of_content(body.get(name))


def _of_content(content: object) -> Iterator[str]:
    """Text, or a list of texts, parts with text, or messages. Token ids are left out."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            inner = part.get("text", part.get("content")) if isinstance(part, dict) else part
            if isinstance(inner, str):
                yield inner
