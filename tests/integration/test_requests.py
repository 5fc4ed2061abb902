"""What requests get back beside the text: headers, errors that name their cause, and protocols other than OpenAI's."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.engine

MODEL = "smollm2-135m"
CHAT = "/v1/chat/completions"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."


def ask(http: httpx.Client, **changes: Any) -> httpx.Response:
    return http.post(CHAT, json={"messages": QUESTION, "temperature": 0, "max_tokens": 16, **changes})


def json_schema(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}


def events(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def test_headers_say_which_request_it_was_and_how_long_it_took(http):
    def counted() -> float:
        found = re.search(
            r'^proxima_ignored_params_total{param="verbosity"} (\S+)$', http.get("/metrics").text, re.MULTILINE
        )
        return float(found[1]) if found else 0.0

    before = counted()
    response = http.post(
        CHAT, json={"messages": QUESTION, "max_tokens": 1, "verbosity": "low"}, headers={"x-request-id": "mine-7"}
    )
    assert counted() == before + 1
    assert response.headers["x-request-id"] == "mine-7"
    assert response.json()["id"] == "chatcmpl-mine-7"
    assert int(response.headers["openai-processing-ms"]) > int(response.headers["x-proxima-queue-ms"]) >= 0
    assert response.headers["x-proxima-ignored-params"] == "verbosity"


def test_the_same_id_may_be_sent_twice(http):
    for _ in range(2):
        answer = http.post(CHAT, json={"messages": QUESTION, "max_tokens": 1}, headers={"x-request-id": "twice"})
        assert answer.status_code == 200


def test_headers_for_vllm_are_not_for_clients(http):
    # A rank that does not exist ends in an error where it is passed on.
    headers = {"x-data-parallel-rank": "7", "x-vllm-priority": "-100"}
    assert http.post(CHAT, json={"messages": QUESTION, "max_tokens": 1}, headers=headers).status_code == 200


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_service_tier_is_echoed_as_it_was_served(http, stream):
    response = ask(http, service_tier="flex", stream=stream, user="u", metadata={"a": "b"}, store=True)
    chunks = events(response) if stream else [response.json()]
    assert {chunk["service_tier"] for chunk in chunks} == {"flex"}
    assert "x-proxima-ignored-params" not in response.headers
    assert ask(http, service_tier="auto").json()["service_tier"] == "default"
    assert ask(http, max_tokens=1).json().get("service_tier") is None


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("schema", "says"),
    [
        pytest.param({"$ref": "#"}, "back to itself", id="without_an_end"),
        pytest.param({"type": "array", "minItems": 10_000}, "minItems", id="items_of_no_type"),
        pytest.param({"type": "number", "multipleOf": 0.5}, "not supported", id="beyond_the_grammar"),
        pytest.param({"$ref": "http://a/b"}, "http://a/b", id="elsewhere"),
    ],
)
def test_a_schema_no_text_can_be_generated_for_is_a_bad_request(http, stream, schema, says):
    response = ask(http, response_format=json_schema(schema), stream=stream)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "invalid_value"
    assert error["param"].startswith("response_format")
    assert says in error["message"]


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        pytest.param({"max_tokens": 100_000}, "context_length_exceeded", "max_tokens", id="output"),
        pytest.param(
            {"max_completion_tokens": 10**9}, "context_length_exceeded", "max_completion_tokens", id="renamed"
        ),
        pytest.param(
            {"messages": [{"role": "user", "content": "a " * 5000}]}, "context_length_exceeded", "messages", id="prompt"
        ),
        pytest.param(
            {"messages": [{"role": "user", "content": "a " * 500_000}]},
            "context_length_exceeded",
            "messages",
            id="book",
        ),
        pytest.param({"logprobs": True, "top_logprobs": 1000}, "invalid_value", "top_logprobs", id="top_logprobs"),
        pytest.param({"messages": None}, "invalid_value", "messages", id="null"),
        pytest.param({"messages": []}, "invalid_value", "messages", id="empty"),
        pytest.param({"top_p": 5}, "invalid_value", "top_p", id="top_p"),
        pytest.param({"bad_words": [""]}, "invalid_value", "bad_words", id="bad_words"),
        pytest.param({"temperature": "0.5"}, "invalid_value", "temperature", id="text_for_a_number"),
        pytest.param({"n": 16_384}, "invalid_value", "n", id="choices"),
        pytest.param({"structured_outputs": {"regex": "("}}, "invalid_value", "structured_outputs", id="regex"),
        pytest.param({"chat_template": "{{x"}, "invalid_value", "chat_template", id="template"),
        pytest.param({"best_of": 3}, "unsupported_parameter", "best_of", id="unsupported"),
        pytest.param(
            {"tools": [{}], "tool_choice": "required"}, "missing_required_parameter", "tools[0].function", id="tool"
        ),
        pytest.param({"stop": ["a"] * 500}, "invalid_value", "stop", id="too_many"),
        pytest.param({"messages": [{"role": "king", "content": "Hi"}]}, "invalid_value", "messages[0].role", id="role"),
        pytest.param(
            {"messages": [{"role": "user", "content": [{"type": "banana"}]}]},
            "invalid_value",
            "messages[0].content[0].type",
            id="part_of_no_kind",
        ),
        pytest.param(
            {
                "messages": [
                    *QUESTION,
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "Hi"},
                            {"type": "image_url", "image_url": {"url": "data:,"}},
                        ],
                    },
                ]
            },
            "invalid_value",
            "messages[1].content[1]",
            id="a_picture_for_a_model_that_reads",
        ),
        pytest.param(
            {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "a"}}]}]},
            "invalid_value",
            "messages[0].content[0].type",
            id="a_file",
        ),
        pytest.param(
            {"messages": [{"role": "user", "content": [{"x": "y"}]}]},
            "missing_required_parameter",
            "messages[0].content[0].type",
            id="part_without_a_type",
        ),
        pytest.param(
            {"messages": [{"role": "user", "content": [{"type": "prompt_embeds", "data": "AAAA"}]}]},
            "invalid_value",
            "messages[0].content[0]",
            id="embeddings_that_are_not_enabled",
        ),
        pytest.param({"n": 0}, "invalid_value", "n", id="no_answer"),
        pytest.param({"logit_bias": {"a": 5}}, "invalid_value", "logit_bias", id="no_token"),
        pytest.param(
            {
                "tools": [{"type": "function", "function": {"name": "f"}}],
                "tool_choice": {"type": "function", "function": {"name": "g"}},
            },
            "invalid_value",
            "tool_choice",
            id="another_tool",
        ),
        pytest.param(
            {"structured_outputs": {"grammar": "root ::= root"}},
            "invalid_value",
            "structured_outputs.grammar",
            id="endless_grammar",
        ),
    ],
)
def test_errors_name_their_parameter(http, changes, code, param):
    response = ask(http, **changes)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == (code, param)
    assert "[" not in error["message"] or "project" not in error["message"]


def test_a_suffix_this_model_cannot_serve_is_refused(http):
    response = http.post("/v1/completions", json={"prompt": "a", "suffix": "b", "max_tokens": 1})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "suffix")


def test_responses(sdk):
    response = sdk.responses.create(model=MODEL, input=QUESTION[0]["content"], temperature=0, service_tier="flex")
    assert (response.output_text, response.status, response.service_tier) == (ANSWER, "completed", "flex")
    with sdk.responses.create(model=MODEL, input=QUESTION[0]["content"], temperature=0, stream=True) as stream:
        streamed = list(stream)
    assert "".join(event.delta for event in streamed if event.type == "response.output_text.delta") == ANSWER
    assert streamed[-1].type == "response.completed"


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "input_image", "image_url": "data:,", "detail": "auto"}, "input[0].content[1]"),
        ({"type": "input_file", "file_id": "a"}, "input[0].content[1].type"),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else "",
)
def test_responses_name_the_part_that_the_model_cannot_take(http, part, param):
    content = [{"type": "input_text", "text": "What is it?"}, part]
    response = http.post("/v1/responses", json={"model": MODEL, "input": [{"role": "user", "content": content}]})
    assert response.status_code == 400
    assert (response.json()["error"]["code"], response.json()["error"]["param"]) == ("invalid_value", param)


def test_messages(http):
    body = {"model": MODEL, "max_tokens": 32, "temperature": 0, "messages": QUESTION}
    answer = http.post("/v1/messages", json=body).json()
    assert (answer["content"], answer["stop_reason"]) == ([{"type": "text", "text": ANSWER}], "end_turn")
    streamed = events(http.post("/v1/messages", json={**body, "stream": True}))
    text = "".join(event["delta"]["text"] for event in streamed if event["type"] == "content_block_delta")
    assert (text, streamed[-1]["type"]) == (ANSWER, "message_stop")
    counted = http.post("/v1/messages/count_tokens", json={"model": MODEL, "messages": QUESTION}).json()
    assert counted["input_tokens"] == answer["usage"]["input_tokens"]


def test_a_failed_message_ends_with_the_error_that_says_why(http):
    output = {"format": {"type": "json_schema", "schema": {"$ref": "#"}}}
    body = {"model": MODEL, "max_tokens": 32, "messages": QUESTION, "output_config": output, "stream": True}
    response = http.post("/v1/messages", json=body)
    error = events(response)[-1] if response.status_code == 200 else response.json()
    assert error["type"] == "error"
    assert error["error"]["code"] == "invalid_value"
    assert "message_stop" not in response.text


def test_a_model_that_makes_no_embeddings_says_so(http):
    response = http.post("/v1/embeddings", json={"input": "a"})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "not_supported")


def test_models_tell_nothing_of_the_machine(http):
    (card,) = http.get("/v1/models").json()["data"]
    assert card["root"] == MODEL
