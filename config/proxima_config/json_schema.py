"""JSON Schema of a configuration file, for editors, Helm and `proxima config schema`."""

from __future__ import annotations

from typing import Any

from proxima_config import vllm_flags
from proxima_config.presets import texts
from proxima_config.tree import ENGINE, keys, sections
from proxima_config.vllm_flags import Flag

_HUMAN_INT = {"type": "string", "pattern": r"^\d+([kmgtKMGT]|\.\d+[kmgt])?$"}
_AUTO = {"type": "string", "enum": ["auto", "Auto", "AUTO", "-1"]}
_JSON_TEXT = {"type": "string", "pattern": r"^\s*\{"}
_OBJECT = {"type": "object"}
_TEXT = {"type": ["string", "number"]}
_BOUND_WORDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
_KIND_SCHEMAS: dict[str, list[dict[str, Any]]] = {
    "bool": [{"type": "boolean"}],
    "int": [{"type": "integer"}],
    "float": [{"type": "number"}],
    "str": [_TEXT],
    "snake_str": [_TEXT],
    "human_int": [{"type": "integer"}, _HUMAN_INT],
    "human_int_or_auto": [{"type": "integer"}, _HUMAN_INT, _AUTO],
    "json": [_OBJECT, _JSON_TEXT],
    "config": [_OBJECT, _JSON_TEXT],
    "json_or_str": [_OBJECT, _TEXT],
    "lora": [
        {"type": "string", "pattern": r"^([^,]*=[^,]*|\s*\{.*)$"},
        {"type": "object", "required": ["name", "path"]},
    ],
    "comma_list": [{"type": "array", "items": {"type": ["string", "integer"]}}, _TEXT],
}


def settings_schema() -> dict[str, Any]:
    """The schema; names are accepted with dashes or underscores, as in the file itself."""
    tops: dict[str, Any] = {
        "preset": {"enum": list(texts()), "description": "Named set of values below everything in this file."}
    }
    tops |= {key.name: key.schema | {"default": key.field.default} for key in keys().values() if not key.section}
    tops |= {name: _section(name, model.__doc__ or "") for name, model in sections().items()}
    tops[ENGINE] = _closed(
        {dest: flag_schema(flag) for dest, flag in vllm_flags.load_flags().items()},
        f"Flags of vLLM {vllm_flags.vllm_version()} by name.",
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Proxima Gateway configuration",
        "type": "object",
        "minProperties": 1,
        "additionalProperties": False,
        "properties": _both_spellings(tops),
    }


def flag_schema(flag: Flag) -> dict[str, Any]:
    """The schema of one vLLM flag's value in a file."""
    variants = [dict(variant) for variant in _KIND_SCHEMAS[flag.kind]]
    limits = {_BOUND_WORDS[name]: limit for name, limit in flag.bounds.items()}
    variants = [variant | limits if variant["type"] in ("integer", "number") else variant for variant in variants]
    if flag.choices is not None:
        # Names of kernels are read in any case and with dashes, which an enumeration cannot say.
        loose = variants if flag.kind == "snake_str" else []
        variants = [{"enum": list(flag.choices)}, *loose]
    if flag.nargs == "+":
        variants = [*variants, {"type": "array", "items": _any_of(variants)}]
    if flag.nargs == "?":
        variants.append({"const": True})
    if flag.nullable:
        variants.append({"type": "null"})
    return _any_of(variants) | {"description": flag.help}


def _any_of(variants: list[dict[str, Any]]) -> dict[str, Any]:
    return dict(variants[0]) if len(variants) == 1 else {"anyOf": variants}


def _section(name: str, text: str) -> dict[str, Any]:
    inside = {
        key.name.rpartition(".")[2]: key.schema | {"default": key.field.default}
        for key in keys().values()
        if key.section == name
    }
    return _closed(inside, text)


def _closed(properties: dict[str, Any], text: str) -> dict[str, Any]:
    # An empty section is null in YAML.
    return {
        "type": ["object", "null"],
        "description": text,
        "additionalProperties": False,
        "properties": _both_spellings(properties),
    }


def _both_spellings(properties: dict[str, Any]) -> dict[str, Any]:
    return properties | {name.replace("_", "-"): schema for name, schema in properties.items()}
