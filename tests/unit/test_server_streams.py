"""Streams: framing, errors in the middle, clients that leave."""

from __future__ import annotations

import asyncio
import json

import pytest
from fake_gateway import BROKEN, FakeGateway, fake_gateway
from vllm.benchmarks.lib.endpoint_request_func import StreamedResponseHandler

from proxima_server.sse import SIGN_OF_LIFE

COMPLETIONS = "/v1/completions"
STREAM = {"stream": True, "prompt": "Hi"}


def chunk(text: str) -> str:
    return f'data: {{"choices": [{{"index": 0, "text": "{text}"}}]}}\n\n'


async def test_events_arrive_as_the_engine_framed_them():
    async with fake_gateway() as gateway:
        await gateway.ready()
        response = await gateway.client.post(COMPLETIONS, json=STREAM)
    assert response.text == "".join(gateway.serving.events)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"


@pytest.mark.parametrize("code", [0x85, 0x2028, 0x2029], ids=hex)
async def test_no_generated_character_ends_a_line(code):
    """Clients that split as Python's `splitlines` does read whole events too."""
    text = f"a{chr(code)}b"
    async with fake_gateway() as gateway:
        await gateway.ready()
        gateway.serving.events = [chunk(text), "data: [DONE]\n\n"]
        lines = (await gateway.client.post(COMPLETIONS, json=STREAM)).text.splitlines()
    assert json.loads(lines[0].removeprefix("data: "))["choices"][0]["text"] == text
    assert lines[1:] == ["", "data: [DONE]", ""]


async def test_a_stream_that_breaks_ends_with_one_error_and_no_done():
    async with fake_gateway() as gateway:
        await gateway.ready()
        gateway.serving.events = [chunk("a"), BROKEN]
        response = await gateway.client.post(COMPLETIONS, json=STREAM)
        metrics = (await gateway.client.get("/metrics")).text
    assert response.status_code == 200
    events = response.text.strip().split("\n\n")
    assert events[0] == chunk("a").strip()
    assert len(events) == 2
    assert '"code": "internal_error"' in events[1]
    assert 'proxima_stream_errors_total{code="internal_error"} 1.0' in metrics


async def test_a_stream_refused_at_once_is_an_http_error():
    async with fake_gateway() as gateway:
        await gateway.ready()
        gateway.serving.events = [BROKEN]
        response = await gateway.client.post(COMPLETIONS, json=STREAM)
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"


@pytest.mark.parametrize("path", [COMPLETIONS, "/generate"])
async def test_a_client_that_leaves_a_stream_ends_the_generation(path):
    async with fake_gateway() as gateway:
        await gateway.ready()
        gateway.serving.hold.clear()
        async with gateway.client.stream("POST", path, json=STREAM) as response:
            await anext(response.aiter_bytes())
        await asyncio.wait_for(gateway.serving.ended.wait(), timeout=5)


@pytest.mark.parametrize("path", [COMPLETIONS, "/generate", "/tokenize"])
async def test_a_client_that_leaves_before_the_answer_ends_the_generation(path):
    async with fake_gateway() as gateway:
        await gateway.ready()
        gateway.serving.hold.clear()
        asking = asyncio.create_task(gateway.client.post(path, json={"prompt": "Hi"}))
        await gateway.serving.started.wait()
        asking.cancel()
        await asyncio.wait_for(gateway.serving.ended.wait(), timeout=5)
        await until_counted(gateway, path)


async def until_counted(gateway: FakeGateway, path: str) -> None:
    """The request is counted as one whose client closed it."""
    counted = f'proxima_http_requests_total{{method="POST",route="{path}",status="499"}} 1.0'
    async with asyncio.timeout(5):
        while counted not in (await gateway.client.get("/metrics")).text:
            pass


async def test_running_streams_finish_when_the_server_stops():
    async with fake_gateway() as gateway:
        await gateway.ready()
        gateway.serving.hold.clear()
        reading = asyncio.create_task(gateway.client.post(COMPLETIONS, json=STREAM))
        await gateway.serving.started.wait()
        gateway.stop()
        gateway.serving.hold.set()
        response = await reading
    assert response.text.endswith("data: [DONE]\n\n")


async def test_generate_answers_prompt_and_output():
    async with fake_gateway() as gateway:
        await gateway.ready()
        gateway.serving.answers = lambda _body: b'{"choices": [{"text": " a"}, {"text": " b"}]}'
        # As curl sends it when nobody told it about JSON: the old server did not look.
        response = await gateway.client.post(
            "/generate",
            content=b'{"prompt": "Hi", "n": 2}',
            headers={"content-type": "application/x-www-form-urlencoded"},
        )
    assert response.json() == {"text": ["Hi a", "Hi b"]}


async def test_generate_streams_the_whole_text_so_far_line_by_line():
    async with fake_gateway() as gateway:
        await gateway.ready()
        gateway.serving.events = [chunk(" a"), chunk(" b"), "data: [DONE]\n\n"]
        response = await gateway.client.post("/generate", json=STREAM)
    assert response.text == '{"text": ["Hi a"]}\n{"text": ["Hi a b"]}\n'


async def test_generate_stream_that_breaks_ends_with_the_error():
    async with fake_gateway() as gateway:
        await gateway.ready()
        gateway.serving.events = [chunk(" a"), BROKEN]
        lines = (await gateway.client.post("/generate", json=STREAM)).text.splitlines()
    assert lines[0] == '{"text": ["Hi a"]}'
    assert len(lines) == 2
    assert '"code": "internal_error"' in lines[1]


async def test_a_stream_that_waits_says_so_at_once_and_now_and_then():
    async with fake_gateway(server={"ping_s": 0.05}) as gateway:
        await gateway.ready()
        gateway.serving.wait_first.clear()
        async with gateway.client.stream("POST", COMPLETIONS, json=STREAM) as response:
            lines = response.aiter_lines()
            assert [await anext(lines) for _ in range(6)] == [""] * 6
            gateway.serving.wait_first.set()
            rest = [line async for line in lines if line]
    assert rest[0].startswith("data: {")
    assert rest[-1] == "data: [DONE]"


def test_signs_of_life_cost_clients_that_cut_line_breaks_off_no_event():
    """vLLM's own benchmark client does, with each piece that it reads."""
    handler, events = StreamedResponseHandler(), []
    for piece in (SIGN_OF_LIFE, b'data: {"a": 1}\n\n', SIGN_OF_LIFE + SIGN_OF_LIFE, b"data: [DONE]\n\n"):
        if cut := piece.strip():
            events += handler.add_chunk(cut)
    assert events == ['data: {"a": 1}', "data: [DONE]"]


async def test_pings_can_be_left_out():
    async with fake_gateway(server={"ping_s": 0}) as gateway:
        await gateway.ready()
        response = await gateway.client.post(COMPLETIONS, json=STREAM)
    assert "\n\n\n" not in response.text


async def test_a_bug_in_the_middle_of_a_stream_is_one_error_event_without_details():
    async with fake_gateway() as gateway:
        await gateway.ready()
        gateway.serving.events = [chunk("a"), RuntimeError("secret")]
        response = await gateway.client.post(COMPLETIONS, json=STREAM)
    events = response.text.strip().split("\n\n")
    assert len(events) == 2
    assert '"code": "internal_error"' in events[1]
    assert "secret" not in response.text


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
async def test_error_events_are_those_of_the_protocol(path):
    async with fake_gateway() as gateway:
        await gateway.ready()
        gateway.serving.events = [chunk("a"), BROKEN]
        response = await gateway.client.post(path, json=STREAM)
    kind, data = response.text.strip().split("\n\n")[-1].split("\n")
    assert kind == "event: error"
    error = json.loads(data.removeprefix("data: "))
    assert error["type"] == "error"
    # What OpenAI's clients look for in any event.
    assert error["error"]["code"] == "internal_error"
