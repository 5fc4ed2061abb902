"""Bounds on what a client may send and on how slowly, on bare connections: what HTTP libraries would never do."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fake_gateway import FakeGateway, fake_gateway

COMPLETIONS = "/v1/completions"
HEAD = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n".encode()
JSON = {"content-type": "application/json"}
SOON = {"header_timeout_s": 0.1, "body_timeout_s": 0.1, "send_timeout_s": 0.1}


async def send(writer: asyncio.StreamWriter, parts: tuple[bytes, ...], pause_s: float) -> None:
    for part in parts:
        writer.write(part)
        await asyncio.sleep(pause_s)


async def answer_to(gateway: FakeGateway, *parts: bytes, pause_s: float = 0.0) -> tuple[int, dict[str, Any]]:
    """Status and error of what the server says until it closes the connection."""
    reader, writer = await asyncio.open_connection(*gateway.address)
    sending = asyncio.create_task(send(writer, parts, pause_s))
    answer = b""
    # Who sends on after it was refused may find the connection reset at last.
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(5):
            while chunk := await reader.read(65536):
                answer += chunk
    sending.cancel()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param((b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 3000 + b"\r\n\r\n",), id="at_once"),
        pytest.param((b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: ", *[b"a" * 1000] * 3), id="without_end"),
        pytest.param((b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",), id="path"),
        pytest.param((b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 1000 + b"\r\n",), id="many"),
    ],
)
async def test_headers_beyond_the_limit(parts):
    async with fake_gateway(server={"max_header_bytes": 2048}) as gateway:
        status, error = await answer_to(gateway, *parts, pause_s=0.01)
    assert (status, error["code"]) == (431, "headers_too_large")


async def test_headers_within_the_limit_may_come_with_a_large_body():
    async with fake_gateway(server={"max_header_bytes": 1024}) as gateway:
        await gateway.ready()
        body = json.dumps({"prompt": "a" * 5000})
        for _ in range(2):
            response = await gateway.client.post(COMPLETIONS, content=body, headers=JSON)
            assert response.status_code == 200


async def test_headers_that_do_not_come():
    async with fake_gateway(server=SOON) as gateway:
        status, error = await answer_to(gateway, b"GET /health HTTP/1.1\r\n")
    assert (status, error["code"]) == (408, "request_timeout")


async def test_a_connection_on_which_nothing_comes_is_closed_without_a_word():
    async with fake_gateway(server=SOON) as gateway:
        reader, writer = await asyncio.open_connection(*gateway.address)
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        writer.close()


async def test_an_idle_connection_that_was_used_is_kept_for_keep_alive_s():
    async with fake_gateway(server={**SOON, "keep_alive_s": 1}) as gateway:
        reader, writer = await asyncio.open_connection(*gateway.address)
        ask = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"
        writer.write(ask)
        await reader.readuntil(b'"failure":null}')
        # Longer than all other limits.
        await asyncio.sleep(0.5)
        writer.write(ask)
        assert (await reader.read(12)) == b"HTTP/1.1 200"
        async with asyncio.timeout(5):
            await reader.read()
        writer.close()


@pytest.mark.parametrize(
    ("parts", "pause_s"),
    [
        pytest.param((b'{"prom',), 0.0, id="stops"),
        pytest.param([b" "] * 30, 0.02, id="trickles"),
    ],
)
async def test_a_body_that_does_not_come(parts, pause_s):
    async with fake_gateway(server=SOON) as gateway:
        await gateway.ready()
        status, error = await answer_to(gateway, HEAD + b"Content-Length: 1000\r\n\r\n", *parts, pause_s=pause_s)
    assert (status, error["code"]) == (408, "request_timeout")


@pytest.mark.parametrize("path", [COMPLETIONS, "/generate", "/tokenize", "/v1/chat/completions"])
async def test_a_body_that_announces_itself_as_too_large(path):
    async with fake_gateway(server={"max_body_bytes": 2000}) as gateway:
        await gateway.ready()
        response = await gateway.client.post(path, json={"prompt": "a" * 2000})
        # The connection is still good.
        assert (await gateway.client.get("/health")).status_code == 200
    assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")


async def test_a_streamed_body_that_becomes_too_large():
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 100

    async with fake_gateway(server={"max_body_bytes": 2000}) as gateway:
        await gateway.ready()
        response = await gateway.client.post(COMPLETIONS, content=chunks(), headers=JSON)
    assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")


async def test_who_goes_on_sending_after_the_refusal_is_cut_off():
    async with fake_gateway(server={"max_body_bytes": 2000}) as gateway:
        await gateway.ready()
        _, writer = await asyncio.open_connection(*gateway.address)
        writer.write(HEAD + b"Content-Length: 1000000000\r\n\r\n")
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(send_for_ever(writer), 5)
        writer.close()


async def send_for_ever(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b" " * 10_000)
        await writer.drain()


async def test_a_stream_that_nobody_reads_is_ended_and_does_not_pile_up():
    """The events would be endless; what is buffered for the client is not."""
    sent = 0

    async def endless(_prompt):
        nonlocal sent
        try:
            while True:
                sent += 1
                await asyncio.sleep(0)
                yield 'data: {"choices": [{"index": 0, "text": "' + "a" * 10_000 + '"}]}\n\n'
        finally:
            gateway.serving.ended.set()

    async with fake_gateway(server=SOON) as gateway:
        await gateway.ready()
        gateway.serving._stream = endless
        _, writer = await asyncio.open_connection(*gateway.address, limit=1024)
        writer.transport.pause_reading()
        body = b'{"stream": true, "prompt": "Hi"}'
        writer.write(HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        async with asyncio.timeout(5):
            await gateway.serving.ended.wait()
        # What the two kernels' sockets hold, and little more.
        assert sent * 10_000 < 20_000_000
        writer.transport.abort()


async def test_what_is_no_http_is_told_so_in_the_usual_shape():
    async with fake_gateway() as gateway:
        status, error = await answer_to(gateway, b"GARBAGE\r\n\r\n")
    assert (status, error["code"]) == (400, "invalid_http")


async def test_an_upgrade_that_is_not_offered_is_an_ordinary_request():
    async with fake_gateway() as gateway:
        headers = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
        assert (await gateway.client.get("/health/live", headers=headers)).status_code == 200
