"""Whatever clients send, they are told what is wrong with it, and the engine goes on.

Two thousand requests that are wrong in one way each: bodies, fields, headers, HTTP itself, and clients that leave.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from client_programs import CLIENTS, install
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

pytestmark = [pytest.mark.engine, pytest.mark.slow]

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
    COMPLETIONS: {"prompt": "Hi", "max_tokens": 2},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 2},
    "/v1/messages": {"model": "smollm2-135m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [1]},
    "/generate": {"prompt": "Hi", "max_tokens": 2},
}
JSON = {"content-type": "application/json"}

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=8), inside, max_size=3),
    max_leaves=8,
)

# Values that no field of the kind takes.
A_LIST, AN_OBJECT = st.lists(ANY_JSON, max_size=3), st.dictionaries(st.text(max_size=8), ANY_JSON, max_size=3)
NO_NUMBER = st.sampled_from(["1", True, 10**30, -(10**30)]) | st.text(max_size=20) | A_LIST | AN_OBJECT
NO_TEXT = st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | AN_OBJECT
NO_OBJECT = st.text(max_size=20) | st.integers() | st.booleans() | A_LIST.filter(bool)
NO_FLAG = st.sampled_from(["true", 1, 0]) | st.text(max_size=20) | st.integers() | A_LIST | AN_OBJECT
WRONG_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "temperature": NO_NUMBER | st.sampled_from([-1, -0.001, 1e300]),
    "top_p": NO_NUMBER | st.sampled_from([-1, 1.5, 0]),
    "max_tokens": NO_NUMBER | st.sampled_from([-1, 10**9, 2.5]),
    "n": NO_NUMBER | st.sampled_from([0, -1, 10_000, 1.5]),
    "seed": NO_NUMBER | st.just(2**63),
    "logit_bias": NO_OBJECT | st.sampled_from([{"999999": 1}, {"a": 1}, {"5": "x"}]),
    "stop": NO_TEXT | st.just([5]),
    "stream": NO_FLAG,
    "stream_options": NO_OBJECT,
    "presence_penalty": NO_NUMBER | st.sampled_from([-3, 5]),
    "top_k": NO_NUMBER | st.sampled_from([-7, 1.5]),
    "min_p": NO_NUMBER | st.sampled_from([-1, 2]),
    "service_tier": st.sampled_from(["gold", 5, {}, []]),
    "user": NO_TEXT,
    "metadata": NO_OBJECT,
    "vllm_xargs": NO_OBJECT,
    "structured_outputs": st.sampled_from([5, {"regex": "("}, {"json": {"type": "x"}}, {"choice": []}, {}]),
    "response_format": st.sampled_from(
        [
            5,
            {},
            {"type": "x"},
            {"type": "json_schema"},
            {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "nonsense"}}},
            {"type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": "#/$defs/none"}}},
            {"type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": "#"}}},
            {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "array", "minItems": 10**6}}},
            {"type": "json_schema", "json_schema": {"name": "a", "schema": {"properties": 5}}},
        ]
    ),
}
WRONG_CHAT_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "messages": st.sampled_from([None, "x", 5, {}, [5], ["x"], [{}], [{"role": 5}], [{"role": "user", "content": 5}]]),
    "tools": st.sampled_from([[], 5, [{}], [5], [{"type": "function"}], [{"type": "function", "function": {}}]]),
    "tool_choice": st.sampled_from(["required", "x", 5, {}, {"type": "function"}, {"function": {"name": 5}}]),
    "top_logprobs": NO_NUMBER | st.sampled_from([-5, 10_000]),
    "best_of": st.just(3),
    "functions": st.just([]),
}


@st.composite
def wrong_fields(draw: st.DrawFn) -> tuple[str, bytes]:
    """One field of a sound request is wrong."""
    path = draw(st.sampled_from([CHAT, COMPLETIONS]))
    fields = {**WRONG_FIELDS, **(WRONG_CHAT_FIELDS if path == CHAT else {"prompt": NO_TEXT | st.just([])})}
    name = draw(st.sampled_from(sorted(fields)))
    return path, json.dumps({**BODIES[path], name: draw(fields[name])}).encode()


@st.composite
def broken_bodies(draw: st.DrawFn) -> tuple[str, bytes]:
    """No JSON, or none that is an object."""
    path = draw(st.sampled_from(sorted(BODIES)))
    sound = json.dumps(BODIES[path]).encode()
    cut = sound[: draw(st.integers(0, len(sound) - 1))]
    return path, draw(
        st.just(cut)
        | st.just(sound + b"x")
        | st.binary(max_size=40).map(lambda garbage: b"\xff" + garbage)
        | ANY_JSON.filter(lambda value: not isinstance(value, dict)).map(lambda value: json.dumps(value).encode())
        | st.sampled_from(
            [b"[" * 5000, b'{"prompt": "\\ud800"}', b'{"n": %s}' % (b"9" * 5000), b'{"n": NaN}', b"{'a': 1}"]
        )
    )


def assert_told(response: httpx.Response) -> None:
    """The request was refused in the shape of all errors."""
    assert 400 <= response.status_code < 500, response.text
    error = response.json()["error"]
    assert isinstance(error["code"], str)
    assert 0 < len(error["message"]) <= 2000
    assert "Traceback" not in error["message"]
    assert "object at 0x" not in error["message"]


WANTED: dict[str, int] = {}
TRIED: Counter[str] = Counter()


def examples(number: int) -> Callable[[Any], Any]:
    """So many, and not fewer: hypothesis stops without a word when it finds no more that differ."""

    def decorate(test: Any) -> Any:
        inner = test.hypothesis.inner_test
        WANTED[test.__name__] = number

        @functools.wraps(inner)
        def counted(*args: Any, **kwargs: Any) -> None:
            TRIED[test.__name__] += 1
            inner(*args, **kwargs)

        test.hypothesis.inner_test = counted
        every = list(HealthCheck)
        return settings(
            max_examples=number, deadline=None, derandomize=True, suppress_health_check=every, database=None
        )(test)

    return decorate


@pytest.fixture(scope="module")
def client(gateway_url: str) -> Any:
    with httpx.Client(base_url=gateway_url, trust_env=False, timeout=60) as client:
        yield client
        # The engine serves, and nobody holds a block.
        text = client.post(CHAT, json={**BODIES[CHAT], "temperature": 0}).json()["choices"][0]["message"]["content"]
        assert text
        for _ in range(100):
            metrics = text_string_to_metric_families(client.get("/metrics").text)
            samples = {each.name: each.value for family in metrics for each in family.samples}
            held = [samples[name] for name in ("proxima_kv_blocks_used", "vllm:num_requests_running")]
            if not any(held):
                break
            time.sleep(0.1)
        assert held == [0, 0]
    assert sum(WANTED.values()) == 2000
    assert {name: count for name, count in TRIED.items() if count < WANTED[name]} == {}


@examples(900)
@given(request=wrong_fields())
def test_a_wrong_field(client: httpx.Client, request: tuple[str, bytes]) -> None:
    path, body = request
    assert_told(client.post(path, content=body, headers=JSON))


@examples(400)
@given(request=broken_bodies())
def test_a_broken_body(client: httpx.Client, request: tuple[str, bytes]) -> None:
    path, body = request
    assert_told(client.post(path, content=body, headers=JSON))


@examples(300)
@given(path=st.sampled_from(sorted(BODIES)), name=st.text(max_size=20), value=ANY_JSON)
def test_a_strange_field_is_no_reason_to_fail(client: httpx.Client, path: str, name: str, value: Any) -> None:
    response = client.post(path, json={**BODIES[path], name: value})
    if response.status_code != 200:
        assert_told(response)
    known = name in BODIES[path] or value is None or path == "/generate"
    assert known or response.status_code != 200 or response.headers["x-proxima-ignored-params"]


@examples(200)
@given(
    headers=st.dictionaries(
        st.sampled_from(
            ["content-type", "content-encoding", "x-request-id", "accept", "traceparent", "x-data-parallel-rank"]
        ),
        st.text(st.characters(min_codepoint=33, max_codepoint=255, exclude_characters="\x7f"), max_size=300),
        min_size=1,
    ),
    method=st.sampled_from(["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "X"]),
    path=st.sampled_from([*sorted(BODIES), "/nowhere", "/v1/models/none"]),
)
def test_wrong_methods_and_strange_headers(
    client: httpx.Client, headers: dict[str, str], method: str, path: str
) -> None:
    sent = {name: value.encode("latin-1") for name, value in headers.items()}
    assert_told(client.request(method, path, headers=sent))


@examples(100)
@given(garbage=st.binary(min_size=1, max_size=200))
def test_what_is_no_http(gateway_url: str, client: httpx.Client, garbage: bytes) -> None:
    with connection(gateway_url) as raw:
        raw.sendall(b"\x00" + garbage + b"\r\n\r\n")
        answer = raw.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"


@examples(100)
@given(path=st.sampled_from([CHAT, COMPLETIONS, "/v1/responses"]), stream=st.booleans(), sent=st.floats(0, 1))
def test_clients_that_leave(gateway_url: str, client: httpx.Client, path: str, stream: bool, sent: float) -> None:
    cap = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    body = json.dumps({**BODIES[path], cap: 500, "stream": stream}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    with connection(gateway_url) as raw:
        # Most leave in the middle of their body, the others while they are answered.
        raw.sendall(head.encode() + body[: int(len(body) * min(1.0, sent * 1.5))])
    # What the engine still holds for them in the end, the client's fixture asks.
    assert client.get("/health").status_code == 200


def connection(gateway_url: str) -> socket.socket:
    where = urlsplit(gateway_url)
    return socket.create_connection((where.hostname, where.port), timeout=60)


def test_the_api_is_what_its_schema_says(gateway_url: str, tmp_path: Path) -> None:
    """Schemathesis finds no answer 5xx and none that differs from /openapi.json."""
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    done = subprocess.run(
        [
            *(install() / "st", "run", f"{gateway_url}/openapi.json", "--checks", checks, "--max-examples", "40"),
            *("--phases", "fuzzing", "--seed", "1", "--no-shrink", "--request-timeout", "60"),
            *("--warnings", "off", "--exclude-path-regex", "^/(admin|debug)"),
        ],
        cwd=tmp_path,
        env={**os.environ, "SCHEMATHESIS_HOOKS": "small_answers", "PYTHONPATH": str(CLIENTS), "NO_PROXY": "*"},
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout[-8000:]
