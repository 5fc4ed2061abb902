"""Every error has the OpenAI shape, a string code, and names what is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from fake_gateway import fake_gateway
from pydantic import BaseModel, Field, ValidationError

from proxima_server.errors import KINDS, MAX_MESSAGE_CHARS, MAX_PARAM_CHARS, APIError, ErrorCode, code_of_status
from proxima_server.request_id import AddRequestId
from proxima_server.validation import validation_error

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}


def error_of(response: httpx.Response) -> dict[str, object]:
    body = response.json()
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["code"], str)
    assert isinstance(error["message"], str)
    return error


def test_every_code_has_a_status_and_a_type():
    assert set(KINDS) == set(ErrorCode)
    assert all(400 <= kind.status < 600 for kind in KINDS.values())


def test_the_documented_codes_are_those_there_are():
    table = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    documented = {
        code: {int(status) for status in row.group(1).split(", ")}
        for row in re.finditer(r"^\| ([45]\d\d(?:, \d{3})*) \| (.*) \|$", table, re.MULTILINE)
        for code in re.findall(r"`([a-z_]+)`", row.group(2))
    }
    assert set(documented) == {code.value for code in ErrorCode}
    assert all(kind.status in documented[code.value] for code, kind in KINDS.items())


def test_every_status_has_a_code():
    # Whatever status a library comes up with, clients get one of our codes; a client's mistake stays one.
    for status in range(400, 600):
        assert KINDS[code_of_status(status)].status // 100 == status // 100


def test_a_message_never_quotes_a_whole_prompt():
    assert len(APIError(ErrorCode.INVALID_VALUE, "x" * 1_000_000).message) == MAX_MESSAGE_CHARS


@pytest.mark.parametrize(
    ("method", "path", "content", "headers", "status", "code", "says"),
    [
        pytest.param("GET", "/nowhere", b"", {}, 404, "not_found", "/nowhere", id="unknown_route"),
        pytest.param("GET", CHAT, b"", {}, 405, "method_not_allowed", "POST", id="wrong_method"),
        pytest.param("POST", CHAT, b"{", JSON, 400, "invalid_json", "line 1", id="broken_json"),
        pytest.param("POST", CHAT, b"[1]", JSON, 400, "invalid_json", "object", id="not_an_object"),
        pytest.param("POST", CHAT, b'{"t": NaN}', JSON, 400, "invalid_json", "line 1", id="not_a_number"),
        pytest.param("POST", CHAT, b"[" * 100_000, JSON, 400, "invalid_json", "", id="absurd_nesting"),
        pytest.param("POST", CHAT, b"\xff", JSON, 400, "invalid_json", "", id="not_utf8"),
        pytest.param("POST", CHAT, b'{"a": "\\ud800"}', JSON, 400, "invalid_json", "line 1", id="no_text"),
        pytest.param(
            "POST", CHAT, b'{"n": %s}' % (b"9" * 5000), JSON, 400, "invalid_json", "range", id="absurd_number"
        ),
        pytest.param("POST", CHAT, b'{"a": [1, 1e999]}', JSON, 400, "invalid_value", "'a[1]'", id="infinite_number"),
        pytest.param(
            "POST", CHAT, b"{}", {"content-type": "text/plain"}, 415, "invalid_content_type", "text/plain", id="text"
        ),
        pytest.param("GET", "/v1/models/none", b"", {}, 404, "model_not_found", "fake", id="unknown_model"),
        pytest.param("POST", "/generate", b"{}", {}, 400, "missing_required_parameter", "prompt", id="no_prompt"),
        pytest.param("POST", "/generate", b'{"prompt": 5}', {}, 400, "invalid_value", "prompt", id="prompt_no_text"),
        pytest.param(
            "POST",
            "/generate",
            b'{"prompt": "a", "tempature": 1}',
            {},
            400,
            "unknown_parameter",
            "tempature",
            id="typo",
        ),
    ],
)
async def test_bad_request(method, path, content, headers, status, code, says):
    async with fake_gateway() as gateway:
        await gateway.ready()
        response = await gateway.client.request(method, path, content=content, headers=headers)
    assert response.status_code == status
    error = error_of(response)
    assert error["code"] == code
    assert says in error["message"]


async def test_a_compressed_body_is_named_as_such():
    async with fake_gateway() as gateway:
        await gateway.ready()
        response = await gateway.client.post(CHAT, content=b"\x1f\x8b", headers={**JSON, "content-encoding": "gzip"})
    assert response.status_code == 415
    assert error_of(response)["code"] == "unsupported_content_encoding"
    assert response.headers["accept-encoding"] == "identity"


async def test_anthropics_clients_get_their_word():
    async with fake_gateway() as gateway:
        await gateway.ready()
        body = (await gateway.client.post("/v1/messages", content=b"{", headers=JSON)).json()
    assert body.pop("type") == "error"
    assert body["error"]["code"] == "invalid_json"


async def test_wrong_method_names_the_right_one():
    async with fake_gateway() as gateway:
        assert (await gateway.client.delete("/v1/models")).headers["allow"] == "GET"


async def test_a_bug_answers_500_without_its_details():
    async with fake_gateway() as gateway:
        await gateway.ready()
        gateway.serving.answers = fail_with_secret
        response = await gateway.client.post(CHAT, json={})
        # The gateway goes on.
        assert (await gateway.client.get("/v1/models")).status_code == 200
    assert response.status_code == 500
    error = error_of(response)
    assert error["code"] == "internal_error"
    assert "secret" not in str(error["message"])


def fail_with_secret(_body: object) -> bytes:
    raise RuntimeError("secret")


async def test_requests_while_loading_are_told_to_retry():
    async with fake_gateway() as gateway:
        response = await gateway.client.post(CHAT, json={})
    assert response.status_code == 503
    assert error_of(response)["code"] == "engine_unavailable"
    assert int(response.headers["retry-after"]) > 0


async def test_requests_after_the_engine_died_hear_the_cause_at_once():
    async with fake_gateway() as gateway:
        await gateway.ready()
        gateway.runtime.fail("EngineCore was killed by signal 9")
        response = await gateway.client.post(CHAT, json={})
    assert response.status_code == 503
    error = error_of(response)
    assert error["code"] == "engine_unavailable"
    assert "signal 9" in str(error["message"])


class _Text(BaseModel):
    type: str = Field(pattern="^text$")


class _Message(BaseModel):
    role: str
    content: str | list[_Text]


class _Chat(BaseModel):
    messages: list[_Message]
    temperature: float = Field(1.0, ge=0)


@pytest.mark.parametrize(
    ("body", "param", "code", "says"),
    [
        pytest.param({}, "messages", ErrorCode.MISSING_REQUIRED_PARAMETER, "'messages'", id="missing"),
        pytest.param(
            {"messages": [{"content": "a"}]},
            "messages[0].role",
            ErrorCode.MISSING_REQUIRED_PARAMETER,
            "'messages[0].role'",
            id="missing_inside",
        ),
        pytest.param(
            {"messages": [], "temperature": -1}, "temperature", ErrorCode.INVALID_VALUE, "(got -1)", id="out_of_bounds"
        ),
        pytest.param(
            {"messages": [{"role": "user", "content": 5}]},
            "messages[0].content",
            ErrorCode.INVALID_VALUE,
            "(got 5)",
            id="no_member_of_the_union",
        ),
        pytest.param(
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "messages[0].content[0].type",
            ErrorCode.INVALID_VALUE,
            'got "image"',
            id="deep_inside_a_member",
        ),
        pytest.param({"messages": "x" * 10_000}, "messages", ErrorCode.INVALID_VALUE, "…", id="value_is_shown_in_part"),
    ],
)
def test_validation_names_field_value_and_rule(body, param, code, says):
    with pytest.raises(ValidationError) as caught:
        _Chat.model_validate(body)
    error = validation_error(caught.value, body)
    assert (error.param, error.code) == (param, code)
    assert says in error.message
    assert len(error.message) < 300


@pytest.mark.parametrize(
    "offered",
    [
        pytest.param("7f3a-11:retry=2/a.b@c", id="sane"),
        pytest.param("x" * 128, id="longest"),
    ],
)
async def test_a_sane_request_id_is_honoured(offered):
    async with fake_gateway() as gateway:
        response = await gateway.client.get("/v1/models", headers={"x-request-id": offered})
    assert response.status_code == 503
    assert response.headers["x-request-id"] == offered


@pytest.mark.parametrize(
    "offered",
    [
        pytest.param(None, id="none"),
        pytest.param("", id="empty"),
        pytest.param("x" * 129, id="too_long"),
        pytest.param('a" level="error', id="would_break_a_log_line"),
    ],
)
async def test_any_other_request_gets_a_new_id(offered):
    async with fake_gateway() as gateway:
        headers = {} if offered is None else {"x-request-id": offered}
        ids = {(await gateway.client.get("/nowhere", headers=headers)).headers["x-request-id"] for _ in range(2)}
    assert len(ids) == 2
    assert all(each.startswith("req_") for each in ids)


async def test_a_bug_is_found_in_the_log_by_the_id_its_client_has(caplog):
    caplog.handler.addFilter(AddRequestId())
    async with fake_gateway() as gateway:
        await gateway.ready()
        gateway.serving.answers = fail_with_secret
        response = await gateway.client.post(CHAT, json={}, headers={"x-request-id": "mine"})
    assert response.headers["x-request-id"] == "mine"
    assert "mine" in str(error_of(response)["message"])
    (record,) = [record for record in caplog.records if record.name == "proxima_server.errors"]
    assert record.request_id == "mine"
    assert record.exc_info is not None


async def test_errors_say_whether_to_retry():
    async with fake_gateway() as gateway:
        loading = await gateway.client.post(CHAT, json={})
        await gateway.ready()
        broken = await gateway.client.post(CHAT, content=b"{", headers=JSON)
    assert (loading.headers["x-should-retry"], broken.headers["x-should-retry"]) == ("true", "false")


def test_a_message_is_always_sendable():
    # A lone surrogate, as a client can send it in JSON, is no UTF-8.
    error = APIError(ErrorCode.INVALID_VALUE, "no \ud800", param="\udfff" * 10_000)
    error.response()
    assert len(error.param or "") == MAX_PARAM_CHARS
