"""The web page's files: who gets them, with which headers, and that they need nothing from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fake_gateway import fake_gateway

from proxima_server import page

FOLDER = Path(page.__file__).parent
SECRET = "team=0123456789abcdefghijklmnopqrstuv"
MODULES = sorted(path.name for path in (FOLDER / "js").iterdir())


async def test_the_page_and_all_that_it_loads_are_served():
    async with fake_gateway() as gateway:
        index = await gateway.client.get("/")
        loaded = re.findall(r'(?:href|src)="(ui/[^"]+)"', index.text)
        answers = [await gateway.client.get(f"/{path}") for path in [*loaded, *(f"ui/js/{name}" for name in MODULES)]]
    assert index.headers["content-type"].startswith("text/html")
    assert len(loaded) >= 5
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.headers["content-type"].partition(";")[0] for answer in answers} == {
        "image/svg+xml",
        "text/css",
        "text/javascript",
    }


def test_modules_import_only_each_other_and_all_are_used():
    imported = set()
    for path in (FOLDER / "js").iterdir():
        found = re.findall(r'from "([^"]+)"', path.read_text())
        assert {name for name in found if not name.startswith("./")} == set(), path.name
        imported |= {name.removeprefix("./") for name in found}
    assert imported | {"main.js"} == set(MODULES)


def test_nothing_is_inline_and_nothing_comes_from_elsewhere():
    index = (FOLDER / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", index)
    assert not re.search(r"<script(?![^>]*\ssrc=)", index)
    for path in FOLDER.rglob("*"):
        if path.suffix in (".html", ".css", ".js"):
            urls = set(re.findall(r"https?://[^\s\"'`]+", path.read_text()))
            assert urls <= {"http://www.w3.org/2000/svg"}, path.name


@pytest.mark.parametrize("path", ["/", "/ui/js/main.js"])
async def test_the_browser_is_told_to_load_nothing_else(path):
    async with fake_gateway() as gateway:
        response = await gateway.client.get(path)
        again = await gateway.client.get(path, headers={"if-none-match": response.headers["etag"]})
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert response.headers["x-content-type-options"] == "nosniff"
    assert again.status_code in (200, 304)


@pytest.mark.parametrize("path", ["/ui/", "/ui/js", "/ui/__init__.py", "/ui/../app.py", "/ui/%2e%2e/app.py"])
async def test_no_other_file_is_served(path):
    async with fake_gateway() as gateway:
        response = await gateway.client.get(path)
    assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")


async def test_the_page_needs_no_key_and_what_it_asks_for_does():
    async with fake_gateway(auth={"api_keys": SECRET}) as gateway:
        assert (await gateway.client.get("/")).status_code == 200
        assert (await gateway.client.get("/ui/js/main.js")).status_code == 200
        assert (await gateway.client.get("/v1/models")).status_code == 401


async def test_the_page_is_on_both_ports():
    async with fake_gateway(admin={"port": 1}) as gateway:
        for client in (gateway.client, gateway.admin):
            assert (await client.get("/")).status_code == 200
            assert (await client.get("/ui/js/main.js")).status_code == 200
        assert (await gateway.client.get("/debug/live")).status_code == 404
        assert (await gateway.admin.get("/debug/live")).status_code == 200


async def test_the_page_can_be_switched_off():
    async with fake_gateway(server={"page": False}) as gateway:
        assert (await gateway.client.get("/")).status_code == 404
        assert (await gateway.client.get("/ui/js/main.js")).status_code == 404
        assert (await gateway.client.get("/debug/live")).status_code == 200
