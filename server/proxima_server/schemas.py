"""JSON Schemas in requests: refused where they are none, and applied to calls that a request forces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for

from proxima_server.errors import APIError, ErrorCode

MAX_VALUES = 20_000
"""Checking and compiling a schema takes time in proportion, during which nobody else is served."""


def check(body: Mapping[str, Any]) -> None:
    """Raises APIError naming the first schema in `body` that is no JSON Schema of the draft it declares."""
    for path, schema in _schemas(body):
        problem = _problem(schema)
        if problem is not None:
            raise APIError(ErrorCode.INVALID_VALUE, f"Invalid schema '{path}': {problem}", param=path)
        try:
            validator_for(schema, default=Draft202012Validator).check_schema(dict(schema))
        except SchemaError as error:
            inside = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
            raise APIError(
                ErrorCode.INVALID_VALUE, f"Invalid schema '{path}{inside}': {_short(error.message)}", param=path
            ) from error
        except RecursionError as error:
            message = f"Invalid schema '{path}': nested too deeply"
            raise APIError(ErrorCode.INVALID_VALUE, message, param=path) from error


def constrain_forced_calls(body: Mapping[str, Any], can_constrain: Callable[[Mapping[str, Any]], bool]) -> None:
    """Make the tools of a request that forces a call `strict`, where they do not say otherwise and it can be done.

    Such a call is constrained anyway, and arguments that do not fit the schema help nobody.
    """
    if body.get("tool_choice") in (None, "auto", "none"):
        return
    for tool in body.get("tools") or ():
        function = tool.get("function") if isinstance(tool, dict) else None
        if isinstance(function, dict) and function.get("strict") is None:
            schema = function.get("parameters")
            if isinstance(schema, Mapping) and can_constrain(schema):
                function["strict"] = True


def _schemas(body: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(path, schema) for each place of a request that holds one; what is not even an object is left to validation."""
    candidates = [
        ("response_format.json_schema.schema", _inside(body, "response_format", "json_schema", "schema")),
        ("structured_outputs.json", _inside(body, "structured_outputs", "json")),
        ("text.format.schema", _inside(body, "text", "format", "schema")),
        ("output_config.format.schema", _inside(body, "output_config", "format", "schema")),
    ]
    tools = body.get("tools")
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        candidates += [
            (f"tools[{index}].{'.'.join(fields)}", _inside(tool, *fields))
            for fields in (("function", "parameters"), ("parameters",), ("input_schema",))
        ]
    return ((path, schema) for path, schema in candidates if isinstance(schema, Mapping))


def _inside(value: Any, *fields: str) -> Any:
    for name in fields:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _problem(schema: Mapping[str, Any]) -> str | None:
    """What keeps `schema` from being checked and used: its size, or a reference to another document.

    Nobody fetches other documents, so such a reference would constrain nothing.
    """
    pending: list[Any] = [schema]
    values = 0
    while pending:
        value = pending.pop()
        values += 1
        if values > MAX_VALUES:
            return f"it has more than {MAX_VALUES} values"
        if isinstance(value, Mapping):
            reference = value.get("$ref")
            if isinstance(reference, str) and not reference.startswith("#"):
                return f"'$ref' must point into the schema itself (got '{_short(reference)}')"
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return None


def _short(message: str) -> str:
    return message if len(message) <= 200 else message[:199] + "…"
