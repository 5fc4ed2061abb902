"""The settings tree as command-line flags, shared by every command that loads settings."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

from proxima_config import vllm_flags
from proxima_config.errors import ConfigError
from proxima_config.layering import LoadedSettings, load_settings
from proxima_config.presets import texts
from proxima_config.tree import ENGINE, Key, keys

_POSITIONAL_MODEL = "positional_model"
_USE_PROXIMA = "use_proxima"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --config, --preset, every key of the tree and every vLLM flag."""
    # argparse would name each of the three hundred flags in the usage line.
    parser.usage = parser.usage or "%(prog)s [flags]"
    layers = parser.add_argument_group("settings")
    layers.add_argument("--config", type=Path, metavar="FILE", help="YAML file with settings")
    layers.add_argument("--preset", metavar="NAME", help=f"one of {', '.join(texts())}")
    for key in keys().values():
        _add_key(layers, key)
    layers.add_argument(
        "--use-proxima",
        dest=_USE_PROXIMA,
        action=argparse.BooleanOptionalAction,
        default=argparse.SUPPRESS,
        help="short for --scheduler proxima; --no-use-proxima for --scheduler native",
    )
    vllm_flags.add_arguments(parser)


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    """Adds the positional MODEL."""
    parser.usage = "%(prog)s [MODEL] [flags]"
    parser.add_argument(
        _POSITIONAL_MODEL,
        metavar="MODEL",
        nargs="?",
        default=argparse.SUPPRESS,
        help="embedded model, Hugging Face id or local folder (default: the embedded model)",
    )


def cli_values(options: argparse.Namespace) -> dict[str, object]:
    """The settings given on the command line, by dotted key; raises ConfigError for contradictory ones."""
    given = vars(options)
    values = {name: value for name, value in given.items() if name in keys() or name.startswith(f"{ENGINE}.")}
    if _USE_PROXIMA in given:
        flag, kind = ("--use-proxima", "proxima") if given[_USE_PROXIMA] else ("--no-use-proxima", "native")
        _set_once(values, "scheduler.kind", kind, flag)
    if _POSITIONAL_MODEL in given:
        _set_once(values, "model", given[_POSITIONAL_MODEL], f"MODEL {given[_POSITIONAL_MODEL]}")
    return values


def load(options: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> LoadedSettings:
    """The settings of a command whose parser has ``add_arguments``."""
    return load_settings(cli=cli_values(options), environ=environ, config_file=options.config, preset=options.preset)


def _set_once(values: dict[str, object], key: str, value: object, given_as: str) -> None:
    if values.setdefault(key, value) != value:
        raise ConfigError(f"{keys()[key].flag} {values[key]} and {given_as} contradict each other")


def _add_key(group: argparse._ArgumentGroup, key: Key) -> None:
    text = (key.field.description or "").replace("%", "%%")
    text += f" (default: {key.field.default!r})".replace("%", "%%")
    if key.is_bool:
        action = argparse.BooleanOptionalAction
        group.add_argument(key.flag, dest=key.name, default=argparse.SUPPRESS, action=action, help=text)
        return
    metavar = "{" + ",".join(key.choices) + "}" if key.choices else str(key.schema["type"]).upper()
    group.add_argument(key.flag, dest=key.name, default=argparse.SUPPRESS, metavar=metavar, help=text)
