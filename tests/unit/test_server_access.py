"""Who reaches what: operators' endpoints, browsers of other origins, clients behind proxies."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from fake_gateway import fake_gateway
from fastapi import FastAPI, Request

from proxima_config.settings import ProximaSettings
from proxima_server.listening import listen, url
from proxima_server.process import Server, uvicorn_config

OPERATORS = ("/admin/drain", "/metrics")


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "token"
    path.write_text("first\n")
    return path


async def drain(client, **headers):
    return (await client.post("/admin/drain", headers=headers)).status_code


async def test_without_a_token_this_machine_may():
    async with fake_gateway() as gateway:
        assert await drain(gateway.client) == 202
        assert gateway.gateway.drain.draining


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"x-forwarded-for": "203.0.113.9"}, id="through_a_proxy"),
        pytest.param({"forwarded": "for=203.0.113.9"}, id="through_a_proxy_of_rfc_7239"),
        pytest.param({"x-forwarded-proto": "https"}, id="through_a_sidecar"),
        pytest.param({"origin": "https://evil.example"}, id="from_a_web_page"),
        pytest.param({"sec-fetch-site": "cross-site"}, id="by_a_browser"),
        pytest.param({"host": "evil.example"}, id="by_another_name"),
        pytest.param({"host": "[2001:db8::1]:80"}, id="by_another_address"),
    ],
)
async def test_without_a_token_who_may_speak_for_others_may_not(headers):
    async with fake_gateway() as gateway:
        response = await gateway.client.post("/admin/drain", headers=headers)
        assert not gateway.gateway.drain.draining
    assert (response.status_code, response.json()["error"]["code"]) == (403, "permission_denied")


@pytest.mark.parametrize("host", ["localhost:8000", "[::1]:8000", "127.0.0.1"])
async def test_this_machine_may_by_any_of_its_names(host):
    async with fake_gateway() as gateway:
        assert await drain(gateway.client, host=host) == 202


async def test_with_a_token_it_is_asked_for():
    async with fake_gateway(admin={"token": "s3cret"}) as gateway:
        refused = await gateway.client.post("/admin/drain")
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        assert refused.headers["www-authenticate"] == "Bearer"
        assert await drain(gateway.client, authorization="Bearer s3cre") == 401
        assert not gateway.gateway.drain.draining
        # Whoever has it may come from anywhere.
        assert await drain(gateway.client, authorization="Bearer s3cret", **{"x-forwarded-for": "203.0.113.9"}) == 202


async def test_the_token_of_a_file_may_change(token_file):
    async with fake_gateway(admin={"token_file": str(token_file)}) as gateway:
        token_file.write_text("second\n")
        assert await drain(gateway.client, authorization="Bearer first") == 401
        assert await drain(gateway.client, authorization="Bearer second") == 202


@pytest.mark.parametrize("spoil", [lambda path: path.unlink(), lambda path: path.write_text("\n")])
async def test_a_token_file_that_is_gone_or_empty_lets_nobody_in(token_file, spoil):
    spoil(token_file)
    async with fake_gateway(admin={"token_file": str(token_file)}) as gateway:
        assert await drain(gateway.client) == 403
        assert await drain(gateway.client, authorization="Bearer") == 403


async def test_paths_that_only_look_like_admin_need_no_token():
    async with fake_gateway(admin={"token": "s3cret"}) as gateway:
        assert (await gateway.client.get("/administrator")).status_code == 404
        assert (await gateway.client.post("/admin//drain")).status_code == 401


@pytest.mark.parametrize("prefix", ["/llm", "/llm/llm", "//llm/", "/%6clm"])
async def test_the_root_path_is_no_way_around_the_token(prefix):
    async with fake_gateway(server={"root_path": "/llm"}, admin={"token": "s3cret"}) as gateway:
        assert (await gateway.client.post(f"{prefix}/admin/drain")).status_code == 401
        assert (await gateway.client.get(f"{prefix}/debug/live")).status_code == 401
        assert (await gateway.client.get(f"{prefix}/health/live")).status_code == 200
        assert (await gateway.client.get(prefix)).status_code == 200
        assert not gateway.gateway.drain.draining


async def test_a_port_of_their_own():
    async with fake_gateway(admin={"port": 1}) as gateway:
        await gateway.ready()
        for path in OPERATORS:
            assert (await gateway.client.request("GET", path)).status_code == 404
        assert (await gateway.admin.get("/metrics")).status_code == 200
        for client in (gateway.client, gateway.admin):
            assert (await client.get("/health/ready")).status_code == 200
        assert (await gateway.admin.post("/v1/completions", json={})).status_code == 404
        # Whoever reaches that port may, without a token.
        assert await drain(gateway.admin, **{"x-forwarded-for": "203.0.113.9"}) == 202


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"origin": "https://evil.example"}, id="old_browser"),
        pytest.param({"origin": "null", "sec-fetch-site": "cross-site"}, id="sandboxed"),
        pytest.param({"sec-fetch-site": "same-site"}, id="another_port"),
    ],
)
async def test_a_port_of_their_own_is_not_for_web_pages(headers):
    async with fake_gateway(admin={"port": 1}) as gateway:
        assert await drain(gateway.admin, **headers) == 403
        assert not gateway.gateway.drain.draining
        assert (await gateway.admin.get("/debug/live", headers={"sec-fetch-site": "same-origin"})).status_code == 200


async def test_a_port_of_their_own_with_a_token():
    async with fake_gateway(admin={"port": 1, "token": "s3cret"}) as gateway:
        assert await drain(gateway.admin) == 401
        assert (await gateway.admin.get("/metrics")).status_code == 200


PREFLIGHT = {"origin": "https://app.example", "access-control-request-method": "POST"}


async def test_other_origins_may_not_by_default():
    async with fake_gateway() as gateway:
        response = await gateway.client.options("/v1/completions", headers=PREFLIGHT)
        assert "access-control-allow-origin" not in response.headers
        response = await gateway.client.get("/health", headers=PREFLIGHT)
        assert "access-control-allow-origin" not in response.headers


async def test_the_origins_that_are_named_may():
    async with fake_gateway(server={"cors_origins": ["https://app.example"]}) as gateway:
        wanted = {**PREFLIGHT, "access-control-request-headers": "authorization,content-type"}
        response = await gateway.client.options("/v1/completions", headers=wanted)
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == "https://app.example"
        assert "authorization" in response.headers["access-control-allow-headers"]
        # Errors too: a page that cannot read them shows nothing.
        response = await gateway.client.post("/v1/completions", json={}, headers=PREFLIGHT)
        assert (response.status_code, response.headers["access-control-allow-origin"]) == (503, "https://app.example")
        other = {**PREFLIGHT, "origin": "https://evil.example"}
        assert (await gateway.client.options("/v1/completions", headers=other)).status_code == 400


@pytest.mark.parametrize(
    ("trusted", "seen"),
    [
        pytest.param([], ["127.0.0.1", "http"], id="nobody"),
        pytest.param(["10.0.0.0/8"], ["127.0.0.1", "http"], id="somebody_else"),
        pytest.param(["127.0.0.0/8"], ["203.0.113.9", "https"], id="this_proxy"),
    ],
)
async def test_only_trusted_proxies_say_who_the_client_is(trusted, seen, monkeypatch):
    # uvicorn's own variable: one fact, one place.
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    app = FastAPI()

    @app.get("/")
    async def who(request: Request) -> list[str]:
        return [request.client.host, request.url.scheme]

    config = uvicorn_config(app, ProximaSettings(server={"trusted_proxies": trusted}))
    with listen("127.0.0.1", 0) as socket:
        server = Server(config)
        serving = asyncio.create_task(server.serve(sockets=[socket]))
        async with httpx.AsyncClient(base_url=url(socket), trust_env=False) as client:
            headers = {"x-forwarded-for": "203.0.113.9", "x-forwarded-proto": "https"}
            assert (await client.get("/", headers=headers)).json() == seen
        server.should_exit = True
        await serving
