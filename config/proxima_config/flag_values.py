"""Reads the value of one vLLM flag the way vLLM's own parser does.

``text`` values come from the command line or the environment and are converted; others come from YAML and must have
the right type already, so that a quoted number is noticed instead of guessed at. Errors are ``ValueError`` with the
rule as message.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable

from pydantic import JsonValue

_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SUFFIXED = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_QUOTED = re.compile(r'("(?:[^"\\]|\\.)*")')
_TRUE = {"true", "1", "yes", "on"}
_FALSE = {"false", "0", "no", "off"}


def split_words(text: str) -> list[JsonValue]:
    """A list given as one text: a JSON array, or words as on a command line."""
    if text.lstrip().startswith("["):
        items = _load_json(text)
        if isinstance(items, list):
            return items
    return list(shlex.split(text))


def read_value(kind: str, value: JsonValue, *, text: bool) -> JsonValue:
    """One value of a flag of this kind."""
    if text and isinstance(value, str):
        return _FROM_TEXT[kind](value)
    return _FROM_TYPED[kind](value)


def human_int(text: str) -> int:
    """ "4k" is 4000, "4K" is 4096, "1.5k" is 1500, as in vLLM."""
    match = _SUFFIXED.fullmatch(text.strip())
    if match is None:
        return _text_int(text)
    number, suffix = match.groups()
    if suffix in _DECIMAL:
        return int(float(number) * _DECIMAL[suffix])
    if "." in number:
        raise ValueError(f"must be a whole number before the binary suffix {suffix} (or use {number}{suffix.lower()})")
    return int(number) * _BINARY[suffix]


def expand_numbers(text: str) -> str:
    """Writes out suffixed numbers (80g) in JSON text, except inside strings, as vLLM does."""
    parts = _QUOTED.split(text)
    parts[::2] = [re.sub(r"\b\d+(?:\.\d+)?[kKmMgGtT]\b", _expand, part) for part in parts[::2]]
    return "".join(parts)


def _expand(match: re.Match[str]) -> str:
    return str(human_int(match.group()))


def _load_json(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
    except ValueError as error:
        raise ValueError(f"must be valid JSON ({error})") from error
    return value


def _text_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("must be an integer") from None


def _text_float(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError("must be a number") from None
    if not math.isfinite(number):
        raise ValueError("must be a finite number")
    return number


def _text_bool(text: str) -> bool:
    if text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    raise ValueError("must be true or false")


def _text_object(text: str) -> JsonValue:
    return _typed_object(_load_json(expand_numbers(text)))


def _text_object_or_str(text: str) -> JsonValue:
    return _text_object(text) if text.strip().startswith("{") else text


def _text_comma_list(text: str) -> JsonValue:
    parts = [part.strip() for part in text.split(",")]
    return [int(part) if part.isdigit() else part for part in parts]


def _typed_int(value: JsonValue) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(f"must be an integer, not {_named(value)}")


def _typed_human_int(value: JsonValue) -> int:
    return human_int(value) if isinstance(value, str) else _typed_int(value)


def _typed_float(value: JsonValue) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return value
    raise ValueError(f"must be a finite number, not {_named(value)}")


def _typed_bool(value: JsonValue) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError(f"must be true or false, not {_named(value)}")


def _typed_str(value: JsonValue) -> str:
    # YAML reads a revision such as 123 or a level such as 2 as a number; vLLM's parser wants its text.
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f"must be a text, not {_named(value)}")


def _typed_object(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return value
    raise ValueError(f"must be a mapping (JSON object), not {_named(value)}")


def _typed_object_or_text(value: JsonValue) -> JsonValue:
    return _text_object(value) if isinstance(value, str) else _typed_object(value)


def _typed_object_or_str(value: JsonValue) -> JsonValue:
    return value if isinstance(value, dict) else _text_object_or_str(_typed_str(value))


def _typed_comma_list(value: JsonValue) -> JsonValue:
    if isinstance(value, list):
        return [item if isinstance(item, int) else _typed_str(item) for item in value]
    return _text_comma_list(_typed_str(value))


def _lora(value: JsonValue) -> JsonValue:
    """An adapter: ``name=path``, or an object with these and maybe ``base_model_name``."""
    if isinstance(value, str):
        value = _load_json(value) if value.lstrip().startswith("{") else value
    is_pair = isinstance(value, str) and "=" in value and "," not in value
    if not is_pair and not (isinstance(value, dict) and {"name", "path"} <= value.keys()):
        raise ValueError("must be name=path, or a mapping with name and path")
    return value


def _auto_or(read: Callable[[JsonValue], int]) -> Callable[[JsonValue], int]:
    def read_auto(value: JsonValue) -> int:
        return -1 if isinstance(value, str) and value.strip().lower() in {"-1", "auto"} else read(value)

    return read_auto


def _snake(text: str) -> str:
    return text.lower().replace("-", "_")


def _named(value: JsonValue) -> str:
    names: dict[type, str] = {bool: "a boolean", str: "a text", list: "a list", dict: "a mapping"}
    return "null" if value is None else names.get(type(value), f"the number {value}")


_FROM_TEXT: dict[str, Callable[[str], JsonValue]] = {
    "bool": _text_bool,
    "int": _text_int,
    "float": _text_float,
    "str": str,
    "snake_str": _snake,
    "human_int": human_int,
    "human_int_or_auto": _auto_or(_typed_human_int),
    "json": _text_object,
    "config": _text_object,
    "json_or_str": _text_object_or_str,
    "comma_list": _text_comma_list,
    "lora": _lora,
}
_FROM_TYPED: dict[str, Callable[[JsonValue], JsonValue]] = {
    "bool": _typed_bool,
    "int": _typed_int,
    "float": _typed_float,
    "str": _typed_str,
    "snake_str": lambda value: _snake(_typed_str(value)),
    "human_int": _typed_human_int,
    "human_int_or_auto": _auto_or(_typed_human_int),
    "json": _typed_object_or_text,
    "config": _typed_object_or_text,
    "json_or_str": _typed_object_or_str,
    "comma_list": _typed_comma_list,
    "lora": _lora,
}
KINDS = frozenset(_FROM_TEXT)
