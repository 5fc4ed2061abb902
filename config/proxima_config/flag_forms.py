"""Rewrites the short-hand forms of vLLM's command line into flags that argparse knows.

``names`` maps every flag of the parser to its dest. What is not a known flag stays as it is, for the parser to refuse.
The forms and their order follow ``vllm.utils.argparse_utils.FlexibleArgumentParser``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from proxima_config.errors import ConfigError
from proxima_config.flag_values import human_int

OPTIMIZATION_LEVEL = "--optimization-level"
_LEVELS = {"0", "1", "2", "3"}


def with_dashes(words: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """``--max_num_seqs`` -> ``--max-num-seqs``; ``-O2``, ``-O=2`` and ``-O 2`` -> ``--optimization-level 2``."""
    rewritten: list[str] = []
    for word, following in zip(words, [*words[1:], ""], strict=False):
        flag, rest = _split_name(word)
        dashed = flag.replace("_", "-")
        if word.startswith("--") and dashed in names:
            rewritten.append(dashed + rest)
        elif OPTIMIZATION_LEVEL in names and word == "-O" and following in _LEVELS:
            rewritten.append(OPTIMIZATION_LEVEL)
        elif OPTIMIZATION_LEVEL in names and word.startswith("-O") and word != "-O":
            rewritten += [OPTIMIZATION_LEVEL, word[2:].removeprefix("=")]
        else:
            rewritten.append(word)
    return rewritten


def join_dotted(words: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """``--flag.a 1 --flag.b.c x`` -> ``--flag={"a": 1, "b": {"c": "x"}}``; ``--flag.list+ x,y`` adds to a list."""
    kept: list[str] = []
    objects: dict[str, dict[str, Any]] = {}
    spelled: dict[str, str] = {}
    remaining = iter(words)
    for word in remaining:
        flag, rest = _split_name(word)
        if flag not in names or not rest.startswith("."):
            kept.append(word)
            continue
        path, equals, value = rest.removeprefix(".").partition("=")
        if not equals and (value := next(remaining, "")) == "":
            raise ConfigError(f"{word} needs a value")
        spelled.setdefault(names[flag], flag)
        _put(objects.setdefault(names[flag], {}), path, value)
    for dest, flag in spelled.items():
        if any(names.get(_split_name(word)[0]) == dest for word in kept):
            # vLLM would silently drop the JSON.
            raise ConfigError(f"{flag} is given both as JSON and by dotted keys; use one of the two")
    return [*kept, *(f"{flag}={json.dumps(objects[dest])}" for dest, flag in spelled.items())]


def _split_name(word: str) -> tuple[str, str]:
    """A word before and from its first "." or "="."""
    ends = [at for at in (word.find("."), word.find("=")) if at >= 0]
    end = min(ends, default=len(word))
    return word[:end], word[end:]


def _put(target: dict[str, Any], path: str, text: str) -> None:
    adds = path.endswith("+")
    *parents, leaf = path.removesuffix("+").split(".")
    for parent in parents:
        below = target.setdefault(parent, {})
        if not isinstance(below, dict):
            raise ConfigError(f"{path}: {parent} is already set to a value and can have no keys below it")
        target = below
    if adds:
        target[leaf] = [*target.get(leaf, []), *text.split(",")]
    else:
        target[leaf] = _read(text)


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return human_int(text)
    except ValueError:
        return text
