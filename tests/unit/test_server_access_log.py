"""One line per request, as text and as JSON, with what it cost and without what it said."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from fake_gateway import BROKEN, CACHED_TOKENS, PROMPT_TOKENS, FakeGateway, fake_gateway

from proxima_config.log_lines import JSONLine, TextLine
from proxima_server.observability.access_log import LOGGER
from proxima_server.observability.prompts import BLOT, prompt_excerpt

PROMPT = "my name is Ada"


class Lines(logging.Handler):
    """What a log collector would get."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.setFormatter(JSONLine())

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def fields(self) -> list[dict[str, Any]]:
        return [json.loads(self.format(record)) for record in self.records]


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, logger = Lines(), logging.getLogger(LOGGER)
    logger.addHandler(handler)
    logger.setLevel("INFO")
    yield handler
    logger.removeHandler(handler)
    logger.setLevel("NOTSET")


async def the_line(gateway: FakeGateway, lines: Lines) -> dict[str, Any]:
    """The only one; it is written when the server is done with the request, which may be later than the client."""
    while not lines.records:
        await asyncio.sleep(0)
    (line,) = lines.fields()
    return line


async def test_a_stream_tells_its_timings_and_sizes(lines):
    async with fake_gateway() as gateway:
        await gateway.ready()
        body = {"stream": True, "model": "fake", "prompt": PROMPT}
        answer = await gateway.client.post("/v1/completions", json=body, headers={"x-request-id": "mine-1"})
        line = await the_line(gateway, lines)
    assert line["logger"] == LOGGER
    assert line["level"] == "INFO"
    assert (line["method"], line["path"], line["status"]) == ("POST", "/v1/completions", 200)
    assert line["outcome"] == "ok"
    assert line["request_id"] == "mine-1" == answer.headers["x-request-id"]
    assert line["model"] == "fake"
    assert line["class"] == "default"
    assert line["prompt_tokens"] == PROMPT_TOKENS
    assert line["cached_tokens"] == CACHED_TOKENS
    assert line["completion_tokens"] == 1
    assert 0 <= line["ttft_ms"] <= line["total_ms"]
    assert 0 <= line["queue_ms"] <= line["ttft_ms"]
    assert line["bytes_in"] == len(answer.request.content)
    assert line["bytes_out"] == len(answer.content)
    assert "Ada" not in json.dumps(line)


async def test_the_name_of_the_key_is_in_line_and_metrics(lines):
    async with fake_gateway() as gateway:
        await gateway.ready()
        answered = gateway.serving.answer

        async def answer(path, body, request):
            request.state.api_key = SimpleNamespace(name="team-a")
            return await answered(path, body, request)

        gateway.serving.answer = answer
        await gateway.client.post("/v1/completions", json={"stream": True})
        line = await the_line(gateway, lines)
        scrape = (await gateway.client.get("/metrics")).text
    assert line["key"] == "team-a"
    assert 'proxima_key_requests_total{key="team-a",outcome="ok"} 1.0' in scrape
    assert f'proxima_key_tokens_total{{key="team-a",kind="prompt"}} {PROMPT_TOKENS}.0' in scrape


async def test_a_refused_request_says_why_and_has_no_timings_of_the_engine(lines):
    async with fake_gateway() as gateway:
        await gateway.ready()
        await gateway.client.post("/v1/completions", content="{", headers={"Content-Type": "application/json"})
        line = await the_line(gateway, lines)
    assert (line["status"], line["outcome"], line["error"]) == (400, "refused", "invalid_json")
    assert not {"ttft_ms", "queue_ms", "prompt_tokens", "class"} & line.keys()


async def test_before_the_engine_is_ready_requests_are_rejected(lines):
    async with fake_gateway() as gateway:
        await gateway.client.post("/v1/completions", json={})
        line = await the_line(gateway, lines)
    assert (line["status"], line["outcome"], line["error"]) == (503, "rejected", "engine_unavailable")


async def test_a_stream_that_fails_after_its_status_is_a_failure(lines):
    async with fake_gateway() as gateway:
        await gateway.ready()
        gateway.serving.events.insert(1, BROKEN)
        await gateway.client.post("/v1/completions", json={"stream": True})
        line = await the_line(gateway, lines)
    assert (line["status"], line["outcome"], line["error"]) == (200, "failed", "internal_error")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_aborts(lines, stream):
    async with fake_gateway() as gateway:
        await gateway.ready()
        gateway.serving.hold.clear()
        asking = asyncio.create_task(gateway.client.post("/v1/completions", json={"stream": stream}))
        await gateway.serving.started.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        line = await the_line(gateway, lines)
    assert line["outcome"] == "aborted"


async def test_probes_and_scrapes_are_not_worth_a_line(lines):
    async with fake_gateway() as gateway:
        await gateway.ready()
        await gateway.client.get("/metrics")
        await gateway.client.get("/health/live")
        await gateway.client.get("/version")
        line = await the_line(gateway, lines)
    assert line["path"] == "/version"


async def test_a_path_cannot_forge_a_line(lines):
    async with fake_gateway() as gateway:
        await gateway.client.get("/a%0Aforged%20line")
        await the_line(gateway, lines)
    text = TextLine().format(lines.records[0])
    assert "\n" not in text
    assert "path=/a%0Aforged%20line" in text


async def test_text_has_the_fields_too(lines):
    async with fake_gateway() as gateway:
        await gateway.ready()
        await gateway.client.post("/v1/completions", json={"model": 'a "b"\n'})
        await the_line(gateway, lines)
    text = TextLine().format(lines.records[0])
    assert " status=200 outcome=ok " in text
    assert r'model="a \"b\"\n"' in text


async def test_prompts_are_logged_when_asked_for_redacted_and_cut(lines):
    async with fake_gateway(logging={"prompts": True, "prompt_chars": 30}) as gateway:
        await gateway.ready()
        said = "I am ada@example.com, please call " + "x " * 1000
        await gateway.client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": said}]})
        line = await the_line(gateway, lines)
    assert line["prompt"] == f"I am {BLOT}, please call x x x x x"[:30]


@pytest.mark.parametrize(
    "secret",
    [
        pytest.param("ada.lovelace+x@mail.example.org", id="e_mail"),
        pytest.param("+49 (30) 1234-5678", id="telephone"),
        pytest.param("4111 1111 1111 1111", id="card"),
        pytest.param("sk-proj-abcdefghijklmnop", id="openai_key"),
        pytest.param("hf_abcdefghijklmnopqrst", id="hub_token"),
        pytest.param("Bearer abc.def-ghi123", id="bearer"),
        pytest.param("password: hunter2", id="password"),
        pytest.param("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", id="jwt"),
        pytest.param("data:image/png;base64,iVBORw0KGgo=", id="image"),
        pytest.param("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", id="pem"),
        pytest.param("0123456789abcdef0123456789abcdef", id="hash"),
    ],
)
def test_secrets_are_blotted_out(secret):
    excerpt = prompt_excerpt({"prompt": f"before {secret} after"}, 1000)
    assert excerpt == f"before {BLOT} after"


def test_a_secret_is_found_although_the_cut_halves_it():
    assert prompt_excerpt({"prompt": "sk-proj-abcdefghijklmnop"}, 5) == BLOT
    assert prompt_excerpt({"prompt": "x" * 10 + " sk-proj-abcdefghijklmnop"}, 14) == "x" * 10 + f" {BLOT}"


@pytest.mark.parametrize(
    ("body", "excerpt"),
    [
        ({"prompt": ["one", "two"]}, "one two"),
        ({"prompt": [1, 2, 3]}, None),
        ({"input": [{"role": "user", "content": "hello"}]}, "hello"),
        ({"messages": [{"role": "system", "content": "old"}, {"role": "user", "content": [{"text": "new"}]}]}, "new"),
        ({"messages": "nonsense"}, None),
        ({}, None),
    ],
)
def test_where_a_prompt_is_found(body, excerpt):
    assert prompt_excerpt(body, 100) == excerpt
