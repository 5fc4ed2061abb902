"""`proxima top`: its screen, its JSON, and what it says when there is no gateway to watch."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from typing import Any

import pytest
from fake_gateway import FakeGateway, fake_gateway, snapshot
from request_rows import state
from rich.console import Console

from proxima_engine.telemetry import Phase
from proxima_server.cli.main import main
from proxima_server.observability.record import RequestRecord
from proxima_server.top.screen import screen

TOKEN = "s3cret-token"


def crowd(gateway: FakeGateway, count: int) -> None:
    gateway.runtime.snapshot_receiver.latest = {0: snapshot(waiting={"forecast": {"default": 2}})}
    states = []
    for number in range(count):
        record = RequestRecord(gateway.gateway.request_metrics, "POST", "/v1/chat/completions")
        record.request_id = f"req_{number:032x}"
        record.sent_s = record.arrived_s
        record.engine_ids.append(f"chatcmpl-{number}")
        gateway.gateway.active_requests.add(record)
        held = number % 3 == 2
        phase, reason = (Phase.BLOCKED, "forecast") if held else (Phase.DECODE, "")
        states.append(state(f"chatcmpl-{number}-0123abcd", phase, reason, start_s=2.5 if held else None, blocks=9))
    gateway.runtime.snapshot_receiver.requests[0] = states


def drawn(document: dict[str, Any], height: int | None = 24) -> list[str]:
    console = Console(width=80, height=24, force_terminal=False, color_system=None, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(screen(document, height, console.width))
    return capture.get().splitlines()


async def document_of(count: int, **changes: Any) -> dict[str, Any]:
    async with fake_gateway(scheduler={"ttft_s": 3600}) as gateway:
        await gateway.ready()
        crowd(gateway, count)
        document = (await gateway.client.get("/debug/live")).json()
        gateway.gateway.active_requests.clear()
    document["gateway"] |= changes
    return document


async def test_a_screen_of_80_by_24_shows_what_matters():
    lines = drawn(await document_of(40))
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "ready" in lines[0]
    assert "running 3   waiting 2   blocked 2" in text
    assert "100/191  52 %  peak 120" in text
    rows = [line for line in lines if "decode" in line or "forecast" in line]
    assert len(rows) >= 10
    assert "2.50" in text
    assert f"and {40 - len(rows)} more" in text


async def test_swaps_have_a_line_where_there_are_any():
    document = await document_of(40)
    assert "swapped" not in "\n".join(drawn(document))
    document["swap"] = {
        "requests": 3,
        "host_blocks_total": 4000,
        "host_blocks_used": 620,
        "blocks_total": {"out": 900, "in": 700},
        "bytes_total": {"out": 1_250_000_000, "in": 999},
        "recompute_tokens_avoided_total": 12_000,
        "failures_total": {"no_room": 2, "copy": 1},
    }
    document["requests"][0] |= {"phase": "swapped", "reason": "blocks"}
    lines = drawn(document)
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    (line,) = [line for line in lines if "host blocks" in line]
    assert " ".join(line.split()) == "swapped 3 host blocks 620/4000 out 1.2 GB in 999 B failed 3"
    assert sum("swapped" in line for line in lines) == 2


async def test_all_requests_are_shown_where_there_is_room():
    lines = drawn(await document_of(40), height=None)
    assert sum("decode" in line or "forecast" in line for line in lines) == 40


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        pytest.param(
            {"draining": True, "drain_remaining_requests": 4, "drain_remaining_s": 12.2},
            "DRAINING: 4 left, 12 s",
            id="drain",
        ),
        pytest.param({"ready": False, "phase": "starting"}, "starting", id="loading"),
        pytest.param({"ready": False, "failure": "the engine died"}, "the engine died", id="failed"),
    ],
)
async def test_the_first_line_says_how_the_gateway_is(changes, shown):
    assert shown in drawn(await document_of(0, **changes))[0]


async def test_what_a_native_scheduler_does_not_tell_is_not_shown_as_zero():
    async with fake_gateway(scheduler={"kind": "native"}) as gateway:
        await gateway.ready()
        document = (await gateway.client.get("/debug/live")).json()
    text = "\n".join(drawn(document))
    assert "running -   waiting -   blocked -   door 0   tokens/s -   done/s -" in text
    assert "yields -   preempted -   backfills -   rejected 0" in text


@pytest.mark.parametrize(
    ("phase", "why"),
    [
        pytest.param("starting", "the engine is loading", id="loading"),
        pytest.param("failed", "there is no engine", id="failed"),
        pytest.param("ready", "this scheduler does not tell", id="native"),
    ],
)
async def test_it_says_why_nothing_is_known_of_the_pool(phase, why):
    document = await document_of(0, phase=phase)
    document["ranks"] = []
    assert f"KV      unknown: {why}" in drawn(document)


async def test_an_idle_gateway_has_no_requests():
    assert "No requests." in "\n".join(drawn(await document_of(0)))


async def test_json_is_the_document_as_the_gateway_answers_it(capsys, monkeypatch):
    monkeypatch.setenv("PROXIMA__ADMIN__TOKEN", TOKEN)
    async with fake_gateway(admin={"token": TOKEN}) as gateway:
        await gateway.ready()
        url = str(gateway.client.base_url)
        assert await asyncio.to_thread(main, ["top", url, "--once", "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["gateway"]["ready"]
        assert await asyncio.to_thread(main, ["top", url, "--once"]) == 0
        assert "No requests." in capsys.readouterr().out
        assert await asyncio.to_thread(main, ["top", url, "--once", "--token", "wrong"]) == 1
        assert "needs the admin token" in capsys.readouterr().err


async def test_without_once_there_is_a_line_for_each_second_until_the_gateway_ends(capsys):
    async with fake_gateway() as gateway:
        await gateway.ready()
        watching = asyncio.create_task(asyncio.to_thread(main, ["top", str(gateway.client.base_url), "--json"]))
        text = ""
        while text.count("\n") < 2:
            await asyncio.sleep(0.05)
            text += capsys.readouterr().out
        gateway.stop()
        assert await watching == 0
        text += capsys.readouterr().out
    documents = [json.loads(line) for line in text.splitlines()]
    assert documents[-1]["gateway"]["draining"]
    assert not documents[0]["gateway"]["draining"]


@pytest.mark.parametrize(
    ("url", "code", "message"),
    [
        pytest.param("http://127.0.0.1:9", 1, "Connection refused; is `proxima serve` running", id="nobody_there"),
        pytest.param("127.0.0.1:8000", 2, "must be like http://127.0.0.1:8000", id="no_scheme"),
        pytest.param("ftp://127.0.0.1", 2, "must be like http://127.0.0.1:8000", id="other_scheme"),
        pytest.param("http://127.0.0.1:port", 2, "must be like http://127.0.0.1:8000", id="no_port"),
        pytest.param("http://[::1", 2, "must be like http://127.0.0.1:8000", id="half_an_address"),
    ],
)
def test_a_gateway_that_cannot_be_asked_is_an_error(url, code, message, capsys):
    assert main(["top", url, "--once"]) == code
    assert message in capsys.readouterr().err


def test_what_does_not_speak_http_is_an_error(capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

        greeting = threading.Thread(target=greet)
        greeting.start()
        assert main(["top", f"http://127.0.0.1:{server.getsockname()[1]}", "--once"]) == 1
        greeting.join()
    assert "SSH-2.0" in capsys.readouterr().err
