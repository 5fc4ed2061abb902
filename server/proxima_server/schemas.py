"""JSON Schemas in requests: refused where they are none, and applied to calls that a request forces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

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
    """What keeps `schema` from being checked and used: its size, or a reference to another document or to itself.

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
    return "no text fits it: a '$ref' leads back to itself" if _leads_back(schema) else None


def _leads_back(root: Mapping[str, Any]) -> bool:
    """Whether following references from some place in `root` comes to that place again with no text in between."""
    finished: set[int] = set()
    for start in _objects(root):
        path = [(start, _in_place(start, root))]
        on_path = {id(start)}
        while path and id(start) not in finished:
            here, rest = path[-1]
            target = next(rest, None)
            if target is None:
                path.pop()
                on_path.discard(id(here))
                finished.add(id(here))
            elif id(target) in on_path:
                return True
            elif id(target) not in finished:
                path.append((target, _in_place(target, root)))
                on_path.add(id(target))
    return False


def _objects(root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    pending: list[Any] = [root]
    while pending:
        value = pending.pop()
        if isinstance(value, Mapping):
            yield value
            pending += value.values()
        elif isinstance(value, list):
            pending += value


def _in_place(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The schemas that all must fit what fits `schema`, the same text and not a part of it."""
    reference = schema.get("$ref")
    targets: list[Any] = [_target(reference, root)] if isinstance(reference, str) else []
    for name in ("allOf", "anyOf", "oneOf"):
        members = schema.get(name)
        if isinstance(members, list) and (name == "allOf" or len(members) == 1):
            targets += members
    return (target for target in targets if isinstance(target, Mapping))


def _target(reference: str, root: Mapping[str, Any]) -> Any:
    """What `reference` points to; None where it is no pointer of JSON, or leads nowhere."""
    here: Any = root
    for part in unquote(reference).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(here, Mapping):
            here = here.get(name)
        else:
            here = here[int(name)] if isinstance(here, list) and name.isdecimal() and int(name) < len(here) else None
    return here if reference == "#" or reference.startswith("#/") else None


def _short(message: str) -> str:
    return message if len(message) <= 200 else message[:199] + "…"
