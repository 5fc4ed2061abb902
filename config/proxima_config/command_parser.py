"""The argument parser of every `proxima` command.

It reads flags in all the forms that vLLM's own command line does, and answers a mistake with one line instead of the
usage of three hundred flags.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from proxima_config.errors import ConfigError, UsageError
from proxima_config.flag_forms import join_dotted, with_dashes
from proxima_config.nearest import nearest
from proxima_config.owned_flags import OWNED_FLAGS

_NEGATIVE_NUMBER = re.compile(r"-\.?\d")


class CommandParser(argparse.ArgumentParser):
    """Accepts ``--a_b`` for ``--a-b``, ``-O2``, and ``--json-flag.key value`` beside JSON, as vLLM does.

    Raises UsageError for a wrong call, ConfigError with the nearest valid flag for an unknown one.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # A shortened flag would change its meaning with the next release that adds a similar one.
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:
        words = list(sys.argv[1:] if args is None else args)
        names = {name: action.dest for name, action in self._option_string_actions.items()}
        words = join_dotted(with_dashes(words, names), names)
        parsed, leftovers = super().parse_known_args(words, namespace)
        if leftovers:
            raise unknown_arguments(leftovers, names)
        return parsed, []

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see `{self.prog} --help`)")


def unknown_arguments(leftovers: Sequence[str], known: Iterable[str]) -> ConfigError:
    """The error for arguments that no parser took: one line for each unknown flag, with the nearest valid one."""
    flags = [word for word in leftovers if word.startswith("-") and not _NEGATIVE_NUMBER.match(word)]
    if not flags:
        return ConfigError(f"unexpected argument {leftovers[0]!r}")
    return ConfigError("\n".join(_unknown_flag(flag.split("=", 1)[0], known) for flag in flags))


def _unknown_flag(flag: str, known: Iterable[str]) -> str:
    name = flag.split(".", 1)[0].lstrip("-").replace("_", "-")
    dest = name.removeprefix("no-").replace("-", "_")
    if dest in OWNED_FLAGS:
        return f"{flag} is not passed to vLLM: {OWNED_FLAGS[dest]}"
    hint = nearest(name, (option.removeprefix("--") for option in known if option.startswith("--")))
    return f"unknown flag {flag}" + (f"; did you mean --{hint}?" if hint else "")
