"""Hides secrets in whatever is printed: `proxima config show`, error messages, logs."""

from __future__ import annotations

import re
from typing import Any

MASK = "********"
# Judged by the last word of a name: hf_token and api_key are secrets, max_num_batched_tokens is not.
_SECRET_WORDS = {"token", "key", "password", "passwd", "passphrase", "secret", "credential", "credentials", "auth"}
_SECRET_PLURALS = {("api", "keys"), ("access", "tokens"), ("auth", "tokens")}
_WORD_BREAK = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
_URL_LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def is_secret(name: str) -> bool:
    """Whether a key of this name holds a secret."""
    words = [word.lower() for word in _WORD_BREAK.split(name) if word]
    return bool(words) and (words[-1] in _SECRET_WORDS or tuple(words[-2:]) in _SECRET_PLURALS)


def shown(name: str, value: Any) -> Any:
    """The value as it may be printed: secrets masked at any depth, logins cut out of URLs.

    true and false stay: ``hf_token: true`` only says that the stored login is used. So does an empty value: none
    is set.
    """
    if isinstance(value, dict):
        return {key: shown(MASK if is_secret(name) else str(key), inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown(name, item) for item in value]
    if is_secret(name) and value not in (None, "") and not isinstance(value, bool):
        return MASK
    return _URL_LOGIN.sub(MASK, value) if isinstance(value, str) else value
