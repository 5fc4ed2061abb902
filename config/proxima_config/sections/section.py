"""What the sections of the settings tree are made of."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_network
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict


@dataclass(frozen=True)
class CliFlag:
    """Name of a key on the command line, where it is not just the field's own name."""

    name: str


def _split(value: object) -> object:
    """A list in one text, as the command line and the environment give it: separated by blanks or commas."""
    return value.replace(",", " ").split() if isinstance(value, str) else value


def _network(value: str) -> str:
    ip_network(value)
    return value


Texts = Annotated[list[str], BeforeValidator(_split)]
Networks = Annotated[list[Annotated[str, AfterValidator(_network)]], BeforeValidator(_split)]


class Section(BaseModel):
    """One group of keys; unknown keys are refused and values never change after loading."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
