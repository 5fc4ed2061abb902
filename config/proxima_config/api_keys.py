"""API keys as an operator writes them down: by their SHA-256, never as they are, each with what it allows.

    keys:
      - name: team-a                   # shown in logs and metrics
        sha256: 5994471abb01112afcc18159f6cc74b4f511b99806da59b3caf5a9c173cacfc5
        requests_per_min: 600
        tokens_per_min: 200000
        max_concurrent: 32
        class: priority
        models: [smollm2-135m]
        weight: 2

`proxima key new` makes a key and its entry. What is left out is not limited.

Why SHA-256, without salt and without argon2: slow hashes protect secrets that people choose, of which there are few
enough to try. A key of 128 random bits or more cannot be found by trying, however fast the hash; and it is hashed at
each request, for which argon2 would take tens of milliseconds that anybody can ask for without a key. Keys given in
plain that could be found by trying are refused.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from proxima_config.errors import ConfigError
from proxima_config.hints import RequestClass
from proxima_config.yaml_file import read_file

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
MIN_SECRET_CHARS = 16
"""Shortest key accepted in plain: shorter ones can be found by trying."""
MIN_DIFFERENT_CHARS = 8
"""Fewest characters that differ in it: sixteen times the same is no secret."""

_PREFIX = "sha256:"
_SHA256 = re.compile("[0-9a-f]{64}")


class ApiKey(BaseModel):
    """One key. Durations override those of the section `deadlines`; 0 there and here means none."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, populate_by_name=True)

    name: str = Field(pattern=NAME)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    requests_per_min: int | None = Field(default=None, ge=1)
    tokens_per_min: int | None = Field(default=None, ge=1)
    """Prompt and output tokens together."""
    max_concurrent: int | None = Field(default=None, ge=1)
    request_class: RequestClass = Field(default=RequestClass.DEFAULT, validation_alias="class", strict=False)
    """The most urgent class that its requests may have, and the one they have if they do not ask for another."""
    models: frozenset[str] | None = Field(default=None, strict=False)
    """Names of models and adapters; None for all."""
    weight: float = Field(default=1.0, gt=0, le=1000)
    """Its share against other keys while requests wait."""
    trust_hints: bool = False
    """Whether its requests may carry hints to the scheduler (`proxima_*` in `vllm_xargs`)."""
    queue_timeout_s: float | None = Field(default=None, ge=0)
    first_token_timeout_s: float | None = Field(default=None, ge=0)
    request_timeout_s: float | None = Field(default=None, ge=0)


def digest(secret: str) -> str:
    """What is kept of a key: its SHA-256 in hexadecimal."""
    return hashlib.sha256(secret.encode()).hexdigest()


def read_keys_file(path: Path) -> tuple[ApiKey, ...]:
    """Raises ConfigError that names every mistake, one a line."""
    found = read_file(path)
    unknown = sorted(found.keys() - {"keys"})
    if unknown:
        raise ConfigError(f"{path}:{found[unknown[0]].line}: unknown key {unknown[0]}; a keys file has `keys` only")
    entries = found["keys"].value
    if not isinstance(entries, list):
        raise ConfigError(f"{path}:{found['keys'].line}: keys must be a list of keys")
    problems: list[str] = []
    keys = [_parsed(entry, f"{path}: key {number}", problems) for number, entry in enumerate(entries, 1)]
    if problems:
        raise ConfigError("\n".join(problems))
    return unique([key for key in keys if key is not None], str(path))


def unique(keys: list[ApiKey], source: str) -> tuple[ApiKey, ...]:
    """The same, after making sure that no name and no key comes twice. Raises ConfigError."""
    names: set[str] = set()
    owners: dict[str, str] = {}
    for key in keys:
        if key.name in names:
            raise ConfigError(f"{source}: two keys are called {key.name}")
        if key.sha256 in owners:
            raise ConfigError(f"{source}: {key.name} and {owners[key.sha256]} are the same key")
        names.add(key.name)
        owners[key.sha256] = key.name
    return tuple(keys)


def hash_keys(text: str) -> str:
    """`name=SECRET` pairs with each secret replaced by its hash. Raises ValueError."""
    return " ".join(f"{name}={_PREFIX}{value}" for name, value in _pairs(text))


def parse_keys(text: str) -> tuple[ApiKey, ...]:
    """Keys without limits from `name=sha256:HASH` or `name=SECRET` pairs. Raises ConfigError or ValueError."""
    return unique([ApiKey(name=name, sha256=value) for name, value in _pairs(text)], "auth.api_keys")


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """Names and hashes. Errors never show a value, which is a secret."""
    for number, item in enumerate(re.split(r"[\s,]+", text.strip()) if text.strip() else (), 1):
        name, given, value = item.partition("=")
        if not given or not value or not re.match(NAME, name):
            raise ValueError(
                f"must be NAME=KEY pairs separated by commas or spaces; pair {number} is not (a name has letters, "
                "digits, '.', '_' and '-')"
            )
        if value.startswith(_PREFIX):
            value = value.removeprefix(_PREFIX)
            if not _SHA256.fullmatch(value):
                raise ValueError(f"must have 64 lower-case hexadecimal digits after sha256:, {name} has not")
        elif len(value) < MIN_SECRET_CHARS:
            raise ValueError(
                f"must have at least {MIN_SECRET_CHARS} characters per key, {name} has {len(value)}; make one with "
                "`proxima key new`"
            )
        elif len(set(value)) < MIN_DIFFERENT_CHARS:
            raise ValueError(
                f"must have at least {MIN_DIFFERENT_CHARS} different characters per key, {name} has {len(set(value))}; "
                "make one with `proxima key new`"
            )
        else:
            value = digest(value)
        yield name, value


def _parsed(entry: Any, place: str, problems: list[str]) -> ApiKey | None:
    if isinstance(entry, dict) and isinstance(entry.get("name"), str):
        place = f"{place} ({entry['name'][:64]})"
    try:
        return ApiKey.model_validate(entry)
    except ValidationError as error:
        for problem in error.errors(include_url=False, include_context=False, include_input=False):
            field = ".".join(str(part) for part in problem["loc"])
            problems.append(f"{place}: {field + ': ' if field else ''}{problem['msg']}")
        return None
