"""What is wrong with a body, from pydantic's errors: the field, the value and the rule, in the words of JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from proxima_server.errors import APIError, ErrorCode

_SHOWN_VALUE_CHARS = 80
_MOST_DETAILS = 600
"""Of pydantic's errors that are compared with each other, which takes the square of it in time. One wrong value in the
largest union has about 250, an array of wrong values any number."""
_TELLS_WHICH = ("role", "type")
"""Fields by which the members of a union are told apart."""
_WRONG_VALUE = {"literal_error": "expected", "union_tag_invalid": "expected_tags"}
"""Types of errors, and where they say what would have been right."""
_MISSING = ("missing", "union_tag_not_found")

_TYPE_NAMES = {
    "string_type": "a string",
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "a boolean",
    "none_required": "null",
    **dict.fromkeys(("list_type", "tuple_type", "set_type", "iterable_type"), "an array"),
    **dict.fromkeys(
        ("dict_type", "model_type", "model_attributes_type", "mapping_type", "dataclass_type"), "an object"
    ),
}
_PLAIN_WORDS = {
    "Input should be": "it must be",
    "a valid dictionary": "an object",
    "a valid list": "an array",
    "a valid array": "an array",
    "iterable": "an array",
    "a valid string": "a string",
    "a valid integer": "an integer",
    "a valid number": "a number",
    "a valid boolean": "a boolean",
    "Value error, ": "",
    "Assertion failed, ": "",
    "List should have": "it must have",
    "String should have": "it must have",
    "String should match": "it must match",
    "Dictionary should have": "it must have",
}

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class _Problem:
    """One of pydantic's errors, placed in the body."""

    path: Path
    members: Path
    """The rest of pydantic's location: the members of unions that it tried."""
    detail: ErrorDetails

    @property
    def is_missing(self) -> bool:
        return self.detail["type"] in _MISSING

    @property
    def is_wrong_value(self) -> bool:
        return self.detail["type"] in _WRONG_VALUE

    @property
    def tells_that_another_was_meant(self) -> bool:
        return bool(self.path) and self.path[-1] in _TELLS_WHICH and (self.is_wrong_value or self.is_missing)

    @property
    def allowed(self) -> list[str]:
        """What would have been right, where that is a type or one of some values."""
        if self.is_wrong_value:
            return [self.detail["ctx"][_WRONG_VALUE[self.detail["type"]]].replace(" or ", ", ")]
        name = _TYPE_NAMES.get(self.detail["type"])
        return [] if name is None else [name]

    def rules_out(self, other: _Problem) -> bool:
        """Whether `other` is about a member of a union that this one says is not meant, or inside of it."""
        mine, here = self.members, self.path[:-1]
        inside = other.members[: len(mine)] == mine and other.path[: len(here)] == here
        beside = other.tells_that_another_was_meant and other.path[:-1] == here
        # Members with a validator of their own all have the same name: what is deeper may be about another one.
        has_a_name = not mine or not str(mine[-1]).startswith("function-")
        return inside and not beside and (has_a_name or len(other.path) <= len(self.path))


def validation_error(error: ValidationError, body: Mapping[str, Any]) -> APIError:
    """The error of our taxonomy for pydantic's."""
    return invalid(error.errors(include_url=False), body)


def invalid(details: Sequence[ErrorDetails], body: Mapping[str, Any]) -> APIError:
    """Name the field, the value and the rule of the most telling of pydantic's errors.

    A value that fits no member of a union yields errors for each member. Those of members which are not meant are left
    out; of the rest the deepest belong to the member that fits best, and there those that came furthest.
    """
    problems = [_problem(detail, body) for detail in details[:_MOST_DETAILS]]
    telling_others = [each for each in problems if each.tells_that_another_was_meant]
    likely = [each for each in problems if not any(other.rules_out(each) for other in telling_others)]
    firsts = {each.members: each for each in reversed(likely)}.values()
    counts = Counter(each.members for each in problems)
    telling = min(firsts, key=lambda each: (*_rank(each), counts[each.members]))
    name = dotted(telling.path)
    if telling.is_missing:
        return missing(name)
    allowed = [word for each in likely if each.path == telling.path for word in each.allowed]
    rule = f"it must be {_either(allowed)}" if telling.allowed else _rule(telling.detail)
    if not name:
        return APIError(ErrorCode.INVALID_VALUE, f"Invalid request: {rule}")
    return wrong(name, rule, _value(telling.path, body))


def _rank(problem: _Problem) -> tuple[object, ...]:
    came_far = tuple(-part if isinstance(part, int) else 0 for part in problem.path)
    return (
        -len(problem.path),
        problem.is_missing or problem.tells_that_another_was_meant,
        # A role that nobody has is no hint at a member without roles, but a type is.
        not (problem.is_wrong_value and problem.path[-1:] == ("role",)),
        problem.tells_that_another_was_meant,
        problem.is_missing,
        problem.is_wrong_value,
        # A value of the right type tells which member was meant.
        problem.detail["type"].endswith("_type"),
        came_far,
    )


def missing(name: str) -> APIError:
    return APIError(ErrorCode.MISSING_REQUIRED_PARAMETER, f"Missing required parameter: '{name}'", param=name)


def wrong(name: str, rule: str, value: object) -> APIError:
    """`value` of the field called `name` does not follow `rule`."""
    return APIError(ErrorCode.INVALID_VALUE, f"Invalid '{name}': {rule} (got {_shown(value)})", param=name)


def _problem(detail: ErrorDetails, body: Mapping[str, Any]) -> _Problem:
    """The part of pydantic's location that exists in `body` is the path: the rest names union members, not fields."""
    path: list[str | int] = []
    members: list[str | int] = []
    here: Any = body
    last = len(detail["loc"]) - 1
    for position, part in enumerate(detail["loc"]):
        is_key = isinstance(part, str) and isinstance(here, Mapping) and part in here
        is_index = isinstance(part, int) and _is_array(here) and part < len(here)
        if is_key or is_index:
            here = here[part]
            path.append(part)
        elif detail["type"] == "missing" and position == last:
            path.append(part)
        else:
            members.append(part)
    if detail["type"].startswith("union_tag_"):
        path.append(detail["ctx"]["discriminator"].strip("'"))
    return _Problem(tuple(path), tuple(members), detail)


def _rule(detail: ErrorDetails) -> str:
    """pydantic's message in the words of JSON."""
    message = detail["msg"]
    for theirs, ours in _PLAIN_WORDS.items():
        message = message.replace(theirs, ours)
    return message


def _either(words: Iterable[str]) -> str:
    """Each once: "a, b or c"."""
    each = list(dict.fromkeys(part for word in words for part in word.split(", ")))
    return each[0] if len(each) == 1 else f"{', '.join(each[:-1])} or {each[-1]}"


def _is_array(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def dotted(path: Sequence[str | int]) -> str:
    name = ""
    for part in path:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
    return name


def _value(path: Path, body: Any) -> Any:
    for part in path:
        body = body[part]
    return body


def _shown(value: object) -> str:
    """`value` as JSON, cut."""
    if isinstance(value, str):
        value = value[:_SHOWN_VALUE_CHARS]
    elif isinstance(value, Mapping | list):
        return "an object" if isinstance(value, Mapping) else "an array"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_VALUE_CHARS else text[: _SHOWN_VALUE_CHARS - 1] + "…"
