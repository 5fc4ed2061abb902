"""Paths, model names, documentation, and the port."""

from __future__ import annotations

import asyncio
import re
import socket

import pytest
from fake_gateway import fake_gateway

from proxima_server.listening import ListenError, listen, url


@pytest.mark.parametrize("path", ["//v1//models", "/v1///models", "//health//live"])
async def test_duplicate_slashes_collapse(path):
    async with fake_gateway() as gateway:
        await gateway.ready()
        host, port = gateway.client.base_url.host, gateway.client.base_url.port
        # Not through the client, which might tidy the path itself.
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n".encode())
        assert b"200 OK" in await reader.readline()
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("path", ["/v1/models/", "/health/", "/v1/models/fake/"])
async def test_a_slash_at_the_end_changes_nothing(path):
    async with fake_gateway() as gateway:
        await gateway.ready()
        assert (await gateway.client.get(path)).status_code == 200


async def test_unknown_paths_with_a_slash_are_unknown():
    async with fake_gateway() as gateway:
        response = await gateway.client.get("/nowhere/")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "not_found"


@pytest.mark.parametrize("path", ["/health", "/health/live", "/v1/models", "/metrics", "/version"])
async def test_head_answers_as_get_without_a_body(path):
    async with fake_gateway() as gateway:
        await gateway.ready()
        head, get = await gateway.client.head(path), await gateway.client.get(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == get.headers["content-type"]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        pytest.param("fake", "fake", id="plain"),
        pytest.param("org/adapter", "org/adapter", id="with_a_slash"),
        pytest.param("%2Fsrv%2Ffolder", "/srv/folder", id="a_folder"),
    ],
)
async def test_one_model(asked, found):
    async with fake_gateway() as gateway:
        await gateway.ready()
        assert (await gateway.client.get(f"/v1/models/{asked}")).json()["id"] == found


async def test_version_names_engine_and_gateway():
    async with fake_gateway() as gateway:
        assert set((await gateway.client.get("/version")).json()) == {"version", "proxima_version"}


async def test_docs_are_there_while_loading_and_complete_once_ready():
    async with fake_gateway() as gateway:
        assert (await gateway.client.get("/docs")).status_code == 200
        loading = (await gateway.client.get("/openapi.json")).json()
        await gateway.ready()
        ready = (await gateway.client.get("/openapi.json")).json()
    chat = "/v1/chat/completions"
    assert "requestBody" not in loading["paths"][chat]["post"]
    schema = ready["paths"][chat]["post"]["requestBody"]["content"]["application/json"]["schema"]
    name = schema["$ref"].removeprefix("#/components/schemas/")
    assert name in ready["components"]["schemas"]


async def test_the_docs_page_loads_nothing_from_elsewhere():
    async with fake_gateway(server={"root_path": "/llm"}) as gateway:
        page = (await gateway.client.get("/docs")).text
        assert not [link for link in re.findall(r'(?:src|href)="([^"]+)"', page) if not link.startswith("/llm/")]
        for link in re.findall(r'(?:src|href)="/llm(/[^"]+)"', page):
            assert (await gateway.client.get(link)).status_code == 200


async def test_docs_can_be_switched_off():
    async with fake_gateway(server={"docs": False}) as gateway:
        assert (await gateway.client.get("/docs")).status_code == 404
        assert (await gateway.client.get("/openapi.json")).status_code == 404


def test_a_taken_port_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=f"port {port} on 127.0.0.1 is already in use"):
            listen("127.0.0.1", port)


def test_a_foreign_address_is_named():
    with pytest.raises(ListenError, match=r"192\.0\.2\.1 is not an address of this machine"):
        listen("192.0.2.1", 0)


def test_a_host_that_is_no_name_is_a_wrong_setting():
    with pytest.raises(
        ListenError, match=r"not\.\.a\.\.host is no host name; choose another with --admin-host"
    ) as caught:
        listen("not..a..host", 0, "admin-")
    assert caught.value.exit_code == 2


def test_port_zero_takes_a_free_one():
    with listen("127.0.0.1", 0) as listening:
        assert url(listening).rpartition(":")[2] != "0"
