"""JSON Schemas that are none are refused by name; forced calls are constrained by those that are."""

from __future__ import annotations

from typing import Any

import pytest

from proxima_server import schemas
from proxima_server.errors import APIError


def response_format(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}


FORMAT = "response_format.json_schema.schema"


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        pytest.param(response_format({"type": "nonsense"}), FORMAT, f"{FORMAT}.type", id="type"),
        pytest.param(response_format({"properties": {"a": 5}}), FORMAT, f"{FORMAT}.properties.a", id="inside"),
        pytest.param(response_format({"$ref": "http://a/b"}), FORMAT, "http://a/b", id="elsewhere"),
        pytest.param(response_format({"enum": list(range(30_000))}), FORMAT, "20000", id="size"),
        pytest.param(response_format({"$ref": "#"}), FORMAT, "back to itself", id="itself"),
        pytest.param(
            response_format({"$defs": {"a": {"allOf": [{"$ref": "#/$defs/b~1"}]}, "b/": {"$ref": "#/%24defs/a"}}}),
            FORMAT,
            "back to itself",
            id="in_a_circle",
        ),
        pytest.param({"structured_outputs": {"json": {"required": "a"}}}, "structured_outputs.json", "", id="vllm"),
        pytest.param({"text": {"format": {"schema": {"enum": 5}}}}, "text.format.schema", "", id="responses"),
        pytest.param({"tools": [{"input_schema": {"type": 5}}]}, "tools[0].input_schema", "", id="messages"),
        pytest.param(
            {"tools": [{}, {"function": {"parameters": {"type": "x"}}}]}, "tools[1].function.parameters", "", id="tool"
        ),
    ],
)
def test_what_is_no_schema_is_named(body: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(APIError) as refused:
        schemas.check(body)
    assert (refused.value.status, refused.value.param) == (400, param)
    assert says in refused.value.message


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(response_format({"$ref": "#/$defs/a", "$defs": {"a": {}}}), id="own_reference"),
        pytest.param(response_format({"properties": {"$ref": {"type": "string"}}}), id="property_of_that_name"),
        pytest.param(response_format({"properties": {"a": {"$ref": "#"}}}), id="a_tree"),
        pytest.param(response_format({"anyOf": [{"$ref": "#"}, {"type": "string"}]}), id="another_way_out"),
        pytest.param(response_format({"$ref": "#/$defs/0/x", "$defs": {}}), id="nowhere"),
        pytest.param(response_format({"$ref": "#a", "allOf": [{}, {}]}), id="an_anchor"),
        pytest.param(
            response_format({"$schema": "http://json-schema.org/draft-07/schema#", "items": [{}]}), id="older_draft"
        ),
        pytest.param({"tools": "none", "response_format": 5, "structured_outputs": {"json": "{"}}, id="not_objects"),
    ],
)
def test_everything_else_passes(body: dict[str, Any]) -> None:
    schemas.check(body)


def tools(**function: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "a", "parameters": {}, **function}}]


@pytest.mark.parametrize(
    ("choice", "function", "strict"),
    [
        pytest.param("required", {}, True, id="required"),
        pytest.param({"type": "function", "function": {"name": "a"}}, {}, True, id="named"),
        pytest.param("required", {"strict": False}, False, id="client_says_no"),
        pytest.param("auto", {}, None, id="model_decides"),
        pytest.param("required", {"parameters": {"uniqueItems": True}}, None, id="cannot_be_constrained"),
    ],
)
def test_forced_calls_fit_their_schema(choice: Any, function: dict[str, Any], strict: bool | None) -> None:
    body = {"tool_choice": choice, "tools": tools(**function)}
    schemas.constrain_forced_calls(body, lambda schema: "uniqueItems" not in schema)
    assert body["tools"][0]["function"].get("strict") is strict
