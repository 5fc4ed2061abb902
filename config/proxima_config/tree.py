"""The keys of the settings tree, each with its names in every layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from proxima_config.settings import CliFlag, ProximaSettings

ENV_PREFIX = "PROXIMA__"
ENV_DELIMITER = "__"
ENGINE = "engine"


@dataclass(frozen=True)
class Key:
    """One key of our own tree; ``name`` is dotted (``server.port``)."""

    name: str
    field: FieldInfo

    @property
    def section(self) -> str:
        return self.name.rpartition(".")[0]

    @property
    def flag(self) -> str:
        given = [item.name for item in self.field.metadata if isinstance(item, CliFlag)]
        return given[0] if given else "--" + self.name.rpartition(".")[2].replace("_", "-")

    @property
    def is_bool(self) -> bool:
        return self.field.annotation is bool

    @property
    def choices(self) -> tuple[str, ...]:
        return tuple(self.schema.get("enum", ()))

    @property
    def schema(self) -> dict[str, Any]:
        """JSON Schema of the value: type, bounds, choices."""
        return self._adapter.json_schema()

    def parse(self, value: object, *, text: bool) -> Any:
        """The checked value; raises ValueError with the rule that it breaks."""
        if text and isinstance(value, str) and value.lower() in self.choices:
            value = value.lower()
        try:
            # YAML values must have the right type; a number in quotes is a mistake worth showing.
            return self._adapter.validate_python(value, strict=not (text and isinstance(value, str)))
        except ValidationError as error:
            raise ValueError(_rule(error)) from error

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        text = Field(description=self.field.description)
        annotated: Any = Annotated[self.field.annotation, text, *self.field.metadata]
        return TypeAdapter(annotated)


@cache
def keys() -> dict[str, Key]:
    """Every key of our own tree by its dotted name; vLLM's flags below ``engine`` are not among them."""
    return {key.name: key for key in _walk(ProximaSettings, "")}


def sections() -> dict[str, type[BaseModel]]:
    """The sections of the tree by name, without ``engine``."""
    return {
        name: field.annotation
        for name, field in ProximaSettings.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    }


def env_name(key: str) -> str:
    """``server.port`` -> ``PROXIMA__SERVER__PORT``."""
    return ENV_PREFIX + key.replace(".", ENV_DELIMITER).upper()


def _walk(model: type[BaseModel], prefix: str) -> list[Key]:
    found: list[Key] = []
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found += _walk(field.annotation, f"{prefix}{name}.")
        elif f"{prefix}{name}" != ENGINE:
            found.append(Key(f"{prefix}{name}", field))
    return found


def _rule(error: ValidationError) -> str:
    message = error.errors(include_url=False, include_context=False)[0]["msg"]
    for wording in ("Input should be a valid ", "Input should be "):
        if message.startswith(wording):
            article = "a valid " if "valid" in wording else ""
            return "must be " + article + message.removeprefix(wording)
    return message[0].lower() + message[1:]
