"""What a client hears of a body that does not fit vLLM's models, whose fields are unions of dozens of members."""

from __future__ import annotations

from typing import Any

import pytest

from proxima_server.errors import APIError
from proxima_server.messages import ROLES, Chat
from proxima_server.messages import check as check_messages
from proxima_server.shapes import mismatches
from proxima_server.validation import invalid
from proxima_server.vllm_endpoints import ENDPOINTS
from proxima_server.vllm_grammars import check_grammar

CHAT, COMPLETIONS, RESPONSES, MESSAGES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
)
CHATTING = Chat(lambda role: role == "critic", ("text", "image_url"))
HI = [{"role": "user", "content": "Hi"}]


def refusal(path: str, body: dict[str, Any]) -> APIError:
    endpoint = ENDPOINTS[path]
    sound: dict[str, Any] = {"model": "m", "max_tokens": 5} if path == MESSAGES else {}
    sound |= {"messages": HI} if path in (CHAT, MESSAGES) else {}
    return invalid(mismatches(endpoint.shapes[endpoint.request(body)], {**sound, **body}), {**sound, **body})


@pytest.mark.parametrize(
    ("path", "body", "param", "rule"),
    [
        (CHAT, {"tool_choice": "never"}, "tool_choice", "'none', 'auto', 'required' or an object"),
        (CHAT, {"stop": 5}, "stop", "a string or an array"),
        (CHAT, {"stop": ["a", 5]}, "stop[1]", "a string"),
        (CHAT, {"response_format": {"type": "yaml"}}, "response_format.type", "'json_schema' or 'structural_tag'"),
        (
            CHAT,
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name",
            "Missing",
        ),
        (CHAT, {"tools": [{"type": "banana", "function": {}}]}, "tools[0].type", "'function'"),
        (COMPLETIONS, {"prompt": ["a", 5]}, "prompt[1]", "an array or a string"),
        (COMPLETIONS, {"prompt": [[1], ["a"]]}, "prompt[1][0]", "an integer"),
        (COMPLETIONS, {"prompt": [-1]}, "prompt[0]", "greater than or equal to 0"),
        (RESPONSES, {"input": 5}, "input", "a string or an array"),
        (RESPONSES, {"input": [{"role": "king", "content": "x"}]}, "input[0].role", "'user', 'assistant'"),
        (RESPONSES, {"input": [{"type": "banana"}]}, "input[0].type", "'function_call_output'"),
        (RESPONSES, {"input": [{"role": "user", "content": 5}]}, "input[0].content", "a string or an array"),
        (RESPONSES, {"input": [{"type": "function_call_output", "call_id": "a"}]}, "input[0].output", "Missing"),
        (RESPONSES, {"tools": [{"type": "banana"}]}, "tools[0].type", "'function'"),
        (RESPONSES, {"input": "a", "text": {"format": {"type": "x"}}}, "text.format.type", "'json_schema'"),
        (MESSAGES, {"thinking": {"type": "x"}}, "thinking.type", "'enabled', 'disabled' or 'adaptive'"),
        (MESSAGES, {"messages": [{"role": "king", "content": "x"}]}, "messages[0].role", "'user', 'assistant'"),
        (
            MESSAGES,
            {"messages": [{"role": "user", "content": [{"type": "banana"}]}]},
            "messages[0].content[0].type",
            "'text'",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and "/" not in value else "",
)
def test_the_field_that_is_wrong_is_named_with_all_that_would_be_right(
    path: str, body: dict[str, Any], param: str, rule: str
) -> None:
    error = refusal(path, body)
    assert error.param == param
    assert rule in error.message


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        pytest.param([], "messages", id="none"),
        pytest.param([{"content": "Hi"}], "messages[0].role", id="nobody"),
        pytest.param([{"role": 5}], "messages[0].role", id="no_word"),
        pytest.param([*HI, {"role": "king", "content": "Hi"}], "messages[1].role", id="king"),
        pytest.param([{"role": "user"}], "messages[0].content", id="silent"),
        pytest.param([{"role": "system", "content": None}], "messages[0].content", id="null"),
        pytest.param([{"role": "user", "content": {"a": 1}}], "messages[0].content", id="object"),
        pytest.param([{"role": "user", "content": [5]}], "messages[0].content[0]", id="number_for_a_part"),
        pytest.param([{"role": "user", "content": [{"type": 5}]}], "messages[0].content[0].type", id="kind"),
        pytest.param([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text", id="no_text"),
        pytest.param([{"role": "user", "content": [{"type": "banana"}]}], "messages[0].content[0].type", id="banana"),
        pytest.param([{"role": "user", "content": [{"x": 1}]}], "messages[0].content[0].type", id="of_no_kind"),
        pytest.param([{"role": "user", "content": [{"text": "Hi"}]}], "messages[0].content[0].type", id="text_of_none"),
        pytest.param([{"role": "assistant", "tool_calls": "x"}], "messages[0].tool_calls", id="calls"),
        pytest.param([{"role": "assistant", "tool_calls": [5]}], "messages[0].tool_calls[0]", id="call"),
        pytest.param([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].function", id="of_what"),
        pytest.param(
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}],
            "messages[0].tool_calls[0].function.arguments",
            id="arguments",
        ),
    ],
)
def test_what_is_no_chat_is_refused_by_name(messages: list[Any], param: str) -> None:
    with pytest.raises(APIError) as refused:
        check_messages(messages, CHATTING)
    assert (refused.value.status, refused.value.param) == (400, param)


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([{"role": role, "content": "Hi"} for role in ROLES], id="roles"),
        pytest.param([{"role": "critic", "content": "Hm"}], id="the_template_knows_it"),
        pytest.param([{"role": "assistant", "content": None}, {"role": "assistant"}], id="only_calls"),
        pytest.param(
            [{"role": "user", "content": ["a", {"type": "text", "text": "b"}, {"image_url": "c"}]}], id="parts"
        ),
        pytest.param(
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}], id="calls"
        ),
        pytest.param([{"author": {"role": "user"}}, "no object", 5], id="left_to_the_models"),
        pytest.param("Hi", id="no_array"),
    ],
)
def test_what_may_be_a_chat_passes(messages: Any) -> None:
    check_messages(messages, CHATTING)
    check_messages(messages, None)


def test_parts_are_left_to_the_models_where_those_check_them() -> None:
    check_messages([{"role": "user", "content": [{"x": 1}, {"type": "banana"}]}], None)


@pytest.mark.parametrize("grammar", ["root ::= root", "root ::= a\na ::= b\nb ::= a"])
def test_a_grammar_that_no_text_fits_is_refused(grammar: str) -> None:
    with pytest.raises(APIError) as refused:
        check_grammar({"structured_outputs": {"grammar": grammar}})
    assert (refused.value.status, refused.value.param) == (400, "structured_outputs.grammar")


@pytest.mark.parametrize(
    "grammar",
    [
        pytest.param('root ::= root "a" | "b"', id="left_recursion"),
        pytest.param('root ::= "a" root', id="endless"),
        pytest.param('start: "a"+', id="another_kind"),
        pytest.param("root ::= (", id="unreadable_is_told_elsewhere"),
        pytest.param("", id="empty"),
        pytest.param(5, id="no_text"),
    ],
)
def test_other_grammars_pass(grammar: Any) -> None:
    check_grammar({"structured_outputs": {"grammar": grammar}})
    check_grammar({})


def test_twenty_thousand_wrong_values_are_told_as_one():
    error = refusal(COMPLETIONS, {"stop_token_ids": ["a"] * 20_000})
    assert (error.param, error.code) == ("stop_token_ids[0]", "invalid_value")
