"""Repetition counts that would make a grammar fill the memory are refused before anything is built from them."""

from __future__ import annotations

from typing import Any

import pytest

from proxima_server.errors import APIError
from proxima_server.schema_limits import MAX_REPETITIONS, check_repetitions


def json_schema(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}


SCHEMA = "response_format.json_schema.schema"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        pytest.param(json_schema({"type": "array", "minItems": 10**9}), f"{SCHEMA}.minItems", id="items"),
        pytest.param(json_schema({"minLength": 1e300}), f"{SCHEMA}.minLength", id="float"),
        pytest.param(json_schema({"anyOf": [{}, {"maxLength": 10**6}]}), f"{SCHEMA}.anyOf[1].maxLength", id="nested"),
        pytest.param(json_schema({"pattern": "a{1,99999999999}"}), f"{SCHEMA}.pattern", id="pattern"),
        pytest.param({"structured_outputs": {"regex": "(a{500}b){400}"}}, "structured_outputs.regex", id="product"),
        pytest.param(
            {"structured_outputs": {"regex": "((a{90}|b){90}[)]){90}"}}, "structured_outputs.regex", id="deep"
        ),
        pytest.param({"structured_outputs": {"regex": "(ab){100001}"}}, "structured_outputs.regex", id="regex"),
        pytest.param(
            {"tools": [{"function": {"parameters": {"minProperties": 10**7}}}]},
            "tools[0].function.parameters.minProperties",
            id="tool",
        ),
    ],
)
def test_counts_beyond_any_context_are_refused_by_name(body: dict[str, Any], param: str) -> None:
    with pytest.raises(APIError, match=str(MAX_REPETITIONS)) as refused:
        check_repetitions(body)
    assert refused.value.status == 400
    assert refused.value.param == param


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(json_schema({"type": "array", "minItems": 3, "maxItems": MAX_REPETITIONS}), id="within"),
        pytest.param(json_schema({"properties": {"minItems": {"type": "integer"}}}), id="property_of_that_name"),
        pytest.param({"messages": [{"content": "a{999999999}"}], "minItems": 10**9}, id="not_a_schema"),
        pytest.param({"structured_outputs": {"regex": r"a{500}b{500}(c{300})d{300}\\({9}x{99999}[({]{9}"}}, id="sum"),
        pytest.param({"response_format": None, "tools": "none"}, id="left_to_validation"),
    ],
)
def test_everything_else_passes(body: dict[str, Any]) -> None:
    check_repetitions(body)


def test_deep_schemas_are_searched_and_named_within_bounds() -> None:
    schema: dict[str, Any] = {"minItems": 10**9}
    for _ in range(900):
        schema = {"items": schema}
    with pytest.raises(APIError) as refused:
        check_repetitions(json_schema(schema))
    assert len(refused.value.param or "") <= 200
