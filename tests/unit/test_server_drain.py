"""The end of a gateway: who may finish, who is sent away, and what the rest is told."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from types import SimpleNamespace

import pytest
from fake_gateway import FakeGateway, fake_gateway

from proxima_server import process

COMPLETIONS = "/v1/completions"
STREAM = {"stream": True, "prompt": "Hi"}


async def begin(gateway: FakeGateway, path: str = COMPLETIONS, **body: object) -> asyncio.Task:
    """A request that the engine works on until the test lets it go on."""
    gateway.serving.hold.clear()
    gateway.serving.started.clear()
    asking = asyncio.create_task(gateway.client.post(path, json={"prompt": "Hi", **body}))
    await gateway.serving.started.wait()
    return asking


@pytest.mark.parametrize("how", ["signal", "admin"])
async def test_running_requests_finish_and_new_ones_are_sent_away(how):
    async with fake_gateway() as gateway:
        await gateway.ready()
        stream, whole = await begin(gateway, stream=True), await begin(gateway)
        if how == "admin":
            told = await gateway.client.post("/admin/drain")
            assert (told.status_code, told.json()["remaining_requests"]) == (202, 2)
        else:
            gateway.stop()

        assert (await gateway.client.get("/health/live")).status_code == 200
        assert (await gateway.client.get("/health/startup")).status_code == 200
        ready = await gateway.client.get("/health/ready")
        assert (ready.status_code, ready.headers["connection"]) == (503, "close")
        draining = ready.json()["draining"]
        assert draining["remaining_requests"] == 2
        assert 0 < draining["remaining_s"] <= 25

        refused = await gateway.client.post(COMPLETIONS, json={"prompt": "Hi"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_draining")
        assert refused.headers["connection"] == "close"
        assert int(refused.headers["retry-after"]) > 0

        # Load balancers ask for it as a probe, SDKs before they send something: both are to go elsewhere.
        for path in ("/v1/models", "/v1/models/fake"):
            models = await gateway.client.get(path)
            assert (models.status_code, models.json()["error"]["code"]) == (503, "server_draining")

        metrics = (await gateway.client.get("/metrics")).text
        assert "proxima_draining 1.0" in metrics
        assert "proxima_drain_remaining_requests 2.0" in metrics
        assert f'route="{COMPLETIONS}",status="503"}} 1.0' in metrics

        gateway.serving.hold.set()
        assert (await stream).text.endswith("data: [DONE]\n\n")
        assert (await whole).status_code == 200
        await asyncio.wait_for(gateway.stopped, 5)
        assert gateway.gateway.error is None


async def test_who_does_not_finish_in_time_is_told_so_and_nobody_is_told_done():
    async with fake_gateway(lifecycle={"drain_s": 0.05}) as gateway:
        await gateway.ready()
        stream, whole = await begin(gateway, stream=True), await begin(gateway)
        lines = await begin(gateway, "/generate", stream=True)
        gateway.stop()
        await asyncio.wait_for(gateway.stopped, 5)

        events = (await stream).text.strip().split("\n\n")
        assert [event for event in events if '"error"' in event] == events[1:]
        assert json.loads(events[1].removeprefix("data: "))["error"]["code"] == "server_draining"
        assert (await whole).status_code == 503
        assert (await whole).json()["error"]["code"] == "server_draining"
        assert json.loads((await lines).text.splitlines()[-1])["error"]["code"] == "server_draining"
        assert gateway.serving.ended.is_set()
    samples = [sample for each in gateway.gateway.metrics.collect() for sample in each.samples]
    counted = {sample.labels.get("code"): sample.value for sample in samples}
    assert counted["server_draining"] == 2


async def test_a_stream_that_is_complete_but_for_its_end_is_not_told_to_have_failed():
    async with fake_gateway(lifecycle={"drain_s": 0.05}) as gateway:
        await gateway.ready()
        gateway.serving.events = ["data: [DONE]\n\n"]
        stream = await begin(gateway, stream=True)
        gateway.stop()
        assert (await stream).text == "data: [DONE]\n\n"


async def test_a_request_that_was_accepted_before_waits_its_turn():
    """Its headers were there, its body comes later: it is one of those that may finish or are told."""
    async with fake_gateway() as gateway:
        await gateway.ready()
        reader, writer = await asyncio.open_connection(*gateway.address)
        body = b'{"prompt": "Hi"}'
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        writer.write(head.encode() + b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % len(body))
        await reader.readuntil(b"100 Continue\r\n\r\n")
        gateway.stop()
        writer.write(body)
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in answer


async def test_with_nothing_to_wait_for_it_ends_at_once_also_while_loading():
    async with fake_gateway(lifecycle={"drain_s": 3600}) as gateway:
        gateway.stop()
        await asyncio.wait_for(gateway.stopped, 5)
    assert gateway.runtime.stopped


async def test_probes_and_scrapes_hold_nothing_up():
    async with fake_gateway(lifecycle={"drain_s": 3600}) as gateway:
        await gateway.ready()
        reader, writer = await asyncio.open_connection(*gateway.address)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.read(1)
        gateway.stop()
        await asyncio.wait_for(gateway.stopped, 5)
        writer.close()


async def test_the_first_signal_drains_and_the_second_ends_the_process_now():
    loop = asyncio.get_running_loop()
    async with fake_gateway(lifecycle={"drain_s": 3600}) as gateway:
        await gateway.ready()
        stream = await begin(gateway, stream=True)
        server = SimpleNamespace(should_exit=False, force_exit=False)
        signals = process._Signals(gateway.gateway, server)
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(5):
            while not gateway.gateway.drain.draining:
                await asyncio.sleep(0)
        assert (signals.exit_code, server.should_exit) == (0, False)
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(5):
            while not server.force_exit:
                await asyncio.sleep(0)
        # As a shell reports a process that SIGTERM has ended: requests were left unanswered.
        assert (signals.exit_code, server.should_exit) == (143, True)
        assert '"server_draining"' in (await stream).text
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def test_a_drain_that_is_called_off_tells_the_rest(caplog):
    async with fake_gateway(lifecycle={"drain_s": 3600}) as gateway:
        await gateway.ready()
        stream = await begin(gateway, stream=True)
        gateway.stop()
        gateway.gateway.drain.call_off()
        await asyncio.wait_for(gateway.stopped, 5)
        assert '"server_draining"' in (await stream).text
    assert "a second signal called the drain off: 1 request is ended with an error" in caplog.text
