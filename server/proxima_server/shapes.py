"""The shape of a request: its fields' types alone, checked before vLLM's own validators see it.

vLLM's validators work on the raw body and take its types for granted, so that `"messages": null` ends in a Python error
about iterating None. pydantic also takes the text "0.5" for a number where OpenAI refuses it. A twin of the request's
model, with its fields and without its validators, catches both and names the field.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic_core import ErrorDetails

# What JSON has no type for: fields with such types are converted, as vLLM's own validation does.
_NO_JSON = frozenset({"bytes_type", "dataclass_exact_type"})

_MAX_INTEGER = 2**63 - 1
_FREE_FORM = frozenset({"tools", "response_format", "structured_outputs", "text", "output_config"})
"""Fields with JSON Schemas in them, in which any number may stand."""


def twin(model: type[BaseModel]) -> type[BaseModel]:
    """A model with the fields of `model` and none of its validators."""
    fields: dict[str, Any] = {name: (field.annotation, field) for name, field in model.model_fields.items()}
    return create_model(f"{model.__name__}Shape", __config__=ConfigDict(extra="allow"), **fields)


def mismatches(shape: type[BaseModel], body: Mapping[str, Any]) -> list[ErrorDetails]:
    """What in `body` is of another type than `shape` says, on all levels."""
    try:
        shape.model_validate(body, strict=True)
    except ValidationError as error:
        details = error.errors(include_url=False)
        converted = {detail["loc"][:1] for detail in details if detail["type"] in _NO_JSON}
        strict = [detail for detail in details if detail["loc"][:1] not in converted]
        return strict + (_inconvertible(shape, body, converted) if converted else [])
    return []


def _inconvertible(
    shape: type[BaseModel], body: Mapping[str, Any], fields: Collection[tuple[int | str, ...]]
) -> list[ErrorDetails]:
    try:
        shape.model_validate(body)
    except ValidationError as error:
        return [detail for detail in error.errors(include_url=False) if detail["loc"][:1] in fields]
    return []


def unrepresentable(body: Mapping[str, Any]) -> str | None:
    """Path of the first number in `body` that the engine cannot hold: beyond 64 bits, or infinite."""
    pending: list[tuple[str, Any]] = [(name, value) for name, value in body.items() if name not in _FREE_FORM]
    while pending:
        path, value = pending.pop()
        if isinstance(value, Mapping):
            pending += [(f"{path}.{key}", inner) for key, inner in value.items()]
        elif isinstance(value, list):
            pending += [(f"{path}[{index}]", inner) for index, inner in enumerate(value)]
        elif isinstance(value, int | float) and abs(value) > _MAX_INTEGER and not _is_large_float(value):
            return path
    return None


def _is_large_float(value: float) -> bool:
    return isinstance(value, float) and abs(value) < float("inf")
