"""Parameters without effect are told or refused, never swallowed; hints to the scheduler come from the door alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from fake_gateway import fake_gateway
from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, model_validator

from proxima_config.forced_length import FIELD as FORCED_LENGTH
from proxima_config.hints import RequestClass
from proxima_engine import watch
from proxima_server import hints, parameters
from proxima_server.answer_notes import AnswerNotes
from proxima_server.errors import APIError, ErrorCode
from proxima_server.metrics.request_metrics import RequestMetrics
from proxima_server.observability.record import RequestRecord
from proxima_server.shapes import mismatches, twin, unrepresentable
from proxima_server.validation import invalid

COMPLETIONS = "/v1/completions"


class _Format(BaseModel):
    model_config = ConfigDict(extra="allow")
    kind: str
    deep: bool = False
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")


@dataclass
class _Options:
    a: int


class _Request(BaseModel):
    model_config = ConfigDict(extra="allow")
    messages: list[Any]
    temperature: float | None = None
    max_tokens: int | None = None
    stream: bool = False
    format: _Format | None = None
    options: _Options | None = None
    raw: bytes | list[bytes] | None = None
    tools: list[_Format] = []

    @model_validator(mode="before")
    @classmethod
    def _trusts_types(cls, data: Any) -> Any:
        for _ in data["messages"]:
            pass
        return data


@pytest.mark.parametrize(
    ("body", "names"),
    [
        pytest.param({"verbosity": "low"}, ["verbosity"], id="unknown"),
        pytest.param({"verbosity": None}, [], id="null_means_unset"),
        pytest.param({"format": {"kind": "a", "schema": {"x": 1}, "strictt": 1}}, ["format.strictt"], id="nested"),
        pytest.param({"tools": [{"kind": "a"}, {"kind": "b", "y": 1}]}, ["tools[1].y"], id="in_a_list"),
        pytest.param({"user": "u", "metadata": {}, "store": True}, [], id="bookkeeping"),
    ],
)
def test_what_the_model_does_not_know_is_found(body: dict[str, Any], names: list[str]) -> None:
    body = {"messages": [], **body}
    assert parameters.unknown(body, _Request.model_validate(body)) == names


def test_what_vllm_knows_and_does_nothing_with_is_named() -> None:
    assert parameters.without_effect({"length_penalty": 2.0, "prompt": "a"}) == ["length_penalty"]
    assert parameters.without_effect({"length_penalty": 2.0, "use_beam_search": True}) == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        pytest.param({"best_of": 3}, "best_of", id="best_of"),
        pytest.param({"functions": []}, "functions", id="functions"),
        pytest.param({"modalities": ["text", "audio"]}, "modalities", id="audio"),
        pytest.param({"guided_json": {}}, "guided_json", id="would_not_be_guided"),
        pytest.param({"prompt": {"id": "pmpt_1"}}, "prompt", id="stored_prompt"),
    ],
)
def test_what_the_client_would_miss_is_refused(body: dict[str, Any], param: str) -> None:
    with pytest.raises(APIError) as refused:
        parameters.refuse_unsupported(body)
    assert (refused.value.code, refused.value.param) == (ErrorCode.UNSUPPORTED_PARAMETER, param)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "body", [{"best_of": 1}, {"best_of": 2, "n": 2}, {"functions": None}, {"modalities": ["text"]}, {"prompt": "a"}]
)
def test_what_changes_nothing_is_neither_refused_nor_changed(body: dict[str, Any]) -> None:
    sent = dict(body)
    parameters.refuse_unsupported(body)
    assert body == sent


@pytest.mark.parametrize("body", [{"user": 5}, {"metadata": "a"}, {"store": "yes"}])
def test_bookkeeping_has_types(body: dict[str, Any]) -> None:
    with pytest.raises(APIError) as refused:
        parameters.refuse_unsupported(body)
    assert refused.value.code is ErrorCode.INVALID_VALUE


@pytest.mark.parametrize(
    ("body", "param"),
    [
        pytest.param({"n": 257}, "n", id="choices"),
        pytest.param({"prompt": ["a"] * 129, "n": 2}, "n", id="product"),
        pytest.param({"prompt": ["a"] * 257}, "prompt", id="prompts"),
    ],
)
def test_a_request_asks_for_a_bounded_number_of_answers(body: dict[str, Any], param: str) -> None:
    with pytest.raises(APIError) as refused:
        parameters.check_sequences(body, 256)
    assert refused.value.param == param


@pytest.mark.parametrize("body", [{}, {"n": 256}, {"prompt": list(range(5000))}, {"n": "3"}, {"prompt": []}])
def test_token_ids_are_one_prompt(body: dict[str, Any]) -> None:
    parameters.check_sequences(body, 256)


@pytest.mark.parametrize(
    ("tier", "scheduled", "told"),
    [
        ("default", RequestClass.DEFAULT, "default"),
        ("flex", RequestClass.FLEX, "flex"),
        ("priority", RequestClass.PRIORITY, "priority"),
    ],
)
def test_service_tier_is_a_class_and_back(tier: str, scheduled: RequestClass, told: str) -> None:
    assert parameters.request_class({"service_tier": tier}) is scheduled
    assert parameters.tier_of(scheduled) == told


def test_auto_is_the_class_of_the_key() -> None:
    assert parameters.request_class({"service_tier": "auto"}) is None


@pytest.mark.parametrize(
    ("tier", "told"), [("gold", '"gold"'), (5, "5"), ({}, "an object"), (["flex"], "an array")], ids=str
)
def test_unknown_tiers_are_refused(tier: object, told: str) -> None:
    with pytest.raises(APIError) as refused:
        parameters.request_class({"service_tier": tier})
    assert refused.value.param == "service_tier"
    assert refused.value.message.endswith(f"flex, priority (got {told})")


def test_a_long_request_is_reported_as_default() -> None:
    assert parameters.tier_of(RequestClass.LONG) == "default"


def test_clients_do_not_speak_to_the_scheduler() -> None:
    sent = {"proxima_class": "priority", "proxima_deadline_s": 0.1, "proxima_new": 1, FORCED_LENGTH: 4, "other": "a"}
    body: dict[str, Any] = {"vllm_xargs": sent}
    hints.write(body, hints.Hints())
    assert body["vllm_xargs"] == {"proxima_class": "default", FORCED_LENGTH: 4, "other": "a"}


def test_the_door_does() -> None:
    request = Request({"type": "http", "state": {}})
    hints.hints_of(request).request_class = RequestClass.FLEX
    hints.hints_of(request).deadline_s = 3.0
    body: dict[str, Any] = {}
    hints.write(body, hints.hints_of(request))
    assert body == {"vllm_xargs": {"proxima_class": "flex", "proxima_deadline_s": 3.0}}


@pytest.mark.parametrize("given", ["proxima_class", 5, ["proxima_class"]])
def test_what_is_no_object_is_left_to_validation(given: object) -> None:
    body: dict[str, Any] = {"vllm_xargs": given}
    hints.write(body, hints.Hints())
    assert body["vllm_xargs"] == given


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        pytest.param({"messages": None}, "messages", "must be an array (got null)", id="null"),
        pytest.param({"messages": [], "temperature": "0.5"}, "temperature", 'a number (got "0.5")', id="text"),
        pytest.param({"messages": [], "max_tokens": 5.0}, "max_tokens", "an integer (got 5.0)", id="float"),
        pytest.param({"messages": [], "stream": 1}, "stream", "a boolean (got 1)", id="int"),
        pytest.param(
            {"messages": [], "format": {"kind": "a", "deep": "yes"}}, "format.deep", 'a boolean (got "yes")', id="deep"
        ),
        pytest.param({"messages": [], "options": 5}, "options", "(got 5)", id="converted"),
        pytest.param({"messages": [], "options": {"a": "x"}}, "options.a", "an integer", id="inside_of_converted"),
        pytest.param({"messages": {"a": 1}}, "messages", "an array (got an object)", id="object"),
    ],
)
def test_types_are_those_of_json(body: dict[str, Any], param: str, says: str) -> None:
    error = invalid(mismatches(twin(_Request), body), body)
    assert error.param == param
    assert says in error.message


def test_the_twin_takes_what_the_model_takes() -> None:
    body = {"messages": [], "temperature": 1, "other": {}, "format": {"kind": "a", "schema": {}}, "options": {"a": 1}}
    assert mismatches(twin(_Request), {**body, "raw": "aGk="}) == []


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"seed": 2**63}, "seed"),
        ({"stop_token_ids": [1, -(10**30)]}, "stop_token_ids[1]"),
        ({"vllm_xargs": {"a": float("inf")}}, "vllm_xargs.a"),
        ({"temperature": 1e300, "top_k": 2**62}, None),
        ({"tools": [{"maximum": 2**64}]}, None),
    ],
)
def test_numbers_the_engine_cannot_hold_are_found(body: dict[str, Any], path: str | None) -> None:
    assert unrepresentable(body) == path


def test_headers_hold_what_clients_send() -> None:
    record = RequestRecord(RequestMetrics())
    record.engine_queued_s = 0.25
    token = watch.current.set(record)
    headers = AnswerNotes(ignored=["a\r\nset-cookie: x", "ü", "", "b" * 5000], door_wait_s=1.0).headers()
    watch.current.reset(token)
    assert headers["x-proxima-queue-ms"] == "1250"
    assert headers["x-proxima-ignored-params"].startswith("a??set-cookie:?x, ?, ?, bbb")
    assert len(headers["x-proxima-ignored-params"]) <= 1000


async def test_a_request_for_too_many_answers_does_not_reach_the_engine():
    async with fake_gateway(server={"max_sequences": 2}) as gateway:
        await gateway.ready()
        response = await gateway.client.post(COMPLETIONS, json={"prompt": "a", "n": 3})
    assert response.status_code == 400
    assert not gateway.serving.started.is_set()
