"""vLLM's engine flags, as described by the generated ``vllm_flags.json``.

Keys are the flags' names in Python form (``max_num_seqs``); values are JSON. vLLM itself is never imported here:
``scripts/generate_vllm_flags.py`` does that when the pinned release changes.
"""

from __future__ import annotations

import argparse
import json
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from pydantic import JsonValue

from proxima_config.flag_values import read_value, split_words
from proxima_config.nearest import nearest
from proxima_config.owned_flags import OWNED_FLAGS

# More choices than this make `--help` unreadable; docs/configuration.md lists them all.
CHOICES_SHOWN = 8


@dataclass(frozen=True)
class Flag:
    """One flag: ``kind`` says how its value is read (see ``flag_values``), ``nargs`` is argparse's own.

    ``nullable`` flags accept null: vLLM's own default, or its explicit "None" where that differs.
    """

    name: str
    dest: str
    kind: str
    group: str
    help: str
    aliases: tuple[str, ...] = ()
    negative: str | None = None
    choices: tuple[JsonValue, ...] | None = None
    nargs: str | None = None
    nullable: bool = False
    default: JsonValue = None
    bounds: Mapping[str, float] = field(default_factory=dict)

    def parse(self, value: JsonValue, *, text: bool) -> JsonValue:
        """The value as vLLM would read it; ``text`` where it comes from the command line or the environment.

        Raises ValueError with the rule that the value breaks.
        """
        if value is None or (text and self.nullable and value in ("", "None", "null")):
            if not self.nullable:
                raise ValueError("must not be null")
            return None
        if self.nargs == "?" and (value is True or (text and value == "true")):
            return True
        if self.nargs == "+":
            return self._parse_list(value, text=text)
        return self._checked(read_value(self.kind, value, text=text))

    def to_argv(self, value: JsonValue) -> list[str]:
        """Arguments for vLLM's parser; ``--flag=value`` where possible, so that no value is taken for a flag."""
        if value is None:
            return [] if self.default is None else [f"{self.name}=None"]
        if self.kind == "bool":
            return [self.name] if value else [self.negative] if self.negative else []
        if self.nargs == "?" and value is True:
            return [self.name]
        if self.nargs == "+" and isinstance(value, list):
            return [self.name, *(_word(item) for item in value)] if value else []
        if self.kind == "comma_list" and isinstance(value, list):
            return [f"{self.name}={','.join(_word(item) for item in value)}"]
        return [f"{self.name}={_word(value)}"]

    def _parse_list(self, value: JsonValue, *, text: bool) -> JsonValue:
        items = split_words(value) if text and isinstance(value, str) else value
        if not isinstance(items, list):
            items = [items]
        if not items and self.default != []:
            raise ValueError("must have at least one item")
        # vLLM's parser reads a list up to the next dash; such an item cannot be handed to it.
        if any(isinstance(item, str) and item.startswith("-") for item in items):
            raise ValueError("must not have items that start with a dash")
        return [self._checked(read_value(self.kind, item, text=text)) for item in items]

    def _checked(self, value: JsonValue) -> JsonValue:
        if self.choices is not None and value not in self.choices:
            hint = nearest(str(value), map(str, self.choices))
            suffix = f"; did you mean {hint}?" if hint else ""
            raise ValueError(f"must be one of {', '.join(map(str, self.choices))}{suffix}")
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            for name, limit in self.bounds.items():
                holds, rule = _BOUNDS[name]
                if not holds(value, limit):
                    raise ValueError(f"must be {rule} {limit:g}")
        return value


_BOUNDS: dict[str, tuple[Callable[[float, float], bool], str]] = {
    "ge": (operator.ge, "at least"),
    "gt": (operator.gt, "greater than"),
    "le": (operator.le, "at most"),
    "lt": (operator.lt, "less than"),
}


@cache
def load_flags() -> dict[str, Flag]:
    """All flags by their name in Python form (argparse's dest)."""
    return _described()[1]


def by_group() -> dict[str, list[Flag]]:
    """The flags in vLLM's own groups, those of no group last."""
    titles = sorted({flag.group for flag in load_flags().values()}, key=lambda title: (title == "Other", title))
    return {title: [flag for flag in load_flags().values() if flag.group == title] for title in titles}


def vllm_version() -> str:
    """The vLLM release that the flags belong to."""
    return _described()[0]


def find(dest: str) -> Flag:
    """The flag of this name, or of this alias; raises ValueError that names the nearest one or the way out."""
    flags = load_flags()
    dest = _dest_of_aliases().get(dest, dest)
    if dest in flags:
        return flags[dest]
    if dest in OWNED_FLAGS:
        raise ValueError(f"engine.{dest} is not passed to vLLM: {OWNED_FLAGS[dest]}")
    hint = nearest(dest, flags)
    raise ValueError(f"engine.{dest} is no vLLM flag" + (f"; did you mean engine.{hint}?" if hint else ""))


def to_argv(engine: Mapping[str, JsonValue]) -> list[str]:
    """Arguments that make vLLM's own parser produce these values."""
    return [word for dest, value in engine.items() for word in find(dest).to_argv(value)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds every flag under vLLM's own names; given ones appear in the namespace as ``engine.<dest>``.

    Values stay texts: all layers are read by the same code, which names the origin of a bad value.
    """
    for title, flags in by_group().items():
        group = parser.add_argument_group(f"vLLM {title}")
        for flag in flags:
            _add_argument(group, flag)


def _add_argument(group: argparse._ArgumentGroup, flag: Flag) -> None:
    names = [flag.name, *flag.aliases]
    text = flag.help.replace("%", "%%")
    dest = f"engine.{flag.dest}"
    if flag.kind == "bool":
        action = argparse.BooleanOptionalAction if flag.negative else "store_true"
        group.add_argument(*names, dest=dest, default=argparse.SUPPRESS, action=action, help=text)
        return
    const = True if flag.nargs == "?" else None
    group.add_argument(
        *names, dest=dest, default=argparse.SUPPRESS, nargs=flag.nargs, const=const, metavar=_metavar(flag), help=text
    )


def _metavar(flag: Flag) -> str:
    if flag.choices and len(flag.choices) <= CHOICES_SHOWN:
        return "{" + ",".join(map(str, flag.choices)) + "}"
    names = {
        "config": "JSON",
        "json": "JSON",
        "json_or_str": "JSON_OR_TEXT",
        "human_int_or_auto": "INT",
        "lora": "NAME=PATH",
    }
    return names.get(flag.kind, flag.kind.rpartition("_")[2].upper())


def _word(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@cache
def _described() -> tuple[str, dict[str, Flag]]:
    described = json.loads((files("proxima_config") / "vllm_flags.json").read_text(encoding="utf-8"))
    flags = {}
    for row in described["flags"]:
        row["aliases"] = tuple(row["aliases"])
        row["choices"] = tuple(row["choices"]) if "choices" in row else None
        flags[row["dest"]] = Flag(**row)
    return described["vllm"], flags


@cache
def _dest_of_aliases() -> dict[str, str]:
    return {
        alias.removeprefix("--").replace("-", "_"): flag.dest
        for flag in load_flags().values()
        for alias in flag.aliases
        if alias.startswith("--")
    }
