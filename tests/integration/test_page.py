"""The web page in a real browser, over a real engine under load; `proxima top` in a real terminal."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.server
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from background_load import BackgroundLoad
from browser import WatchedPage, browser
from fake_gateway import FakeGateway, fake_gateway, snapshot
from gateway_process import PROXIMA, GatewayProcess
from playwright.sync_api import Browser, expect
from ports import free_ports
from request_rows import state

from proxima_engine.telemetry import Phase

pytestmark = [pytest.mark.engine, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
VIEWS = ("overview", "scheduler", "chat")
WIDTHS = {"phone": (390, 844), "laptop": (1280, 800), "wide": (1920, 1080)}
TOKEN = "operator-0123456789-abcdef"
API_KEY = "team=sk-0123456789abcdefghijklmnop"
TINY = ["--max-model-len", "2048", "--kv-cache-memory-bytes", "200000000", "--enforce-eager"]


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.getbasetemp() / "chromium") as launched:
        yield launched


def load(
    url: str, streams: int, words: int = 200, tokens: int = 400, headers: dict[str, str] | None = None
) -> BackgroundLoad:
    return BackgroundLoad(
        url, streams, lambda number, _: {"prompt": f"{number} " * words, "max_tokens": tokens}, headers
    )


def test_the_live_view_moves_under_load_and_empties_after_it(chromium, gateway_url, tmp_path):
    with WatchedPage(chromium, gateway_url, viewport={"width": 1280, "height": 800}) as watched:
        page = watched.open("overview")
        expect(page.locator("#pill")).to_have_text("ready")
        with load(gateway_url, 24):
            expect(page.locator("#requests tbody tr").nth(20)).to_be_visible()
            expect(page.locator("#requests .phase.decode").first).to_be_visible()
            expect(page.locator("#requests .phase.blocked, #requests .phase.waiting").first).to_be_visible()
            expect(page.locator(".tile", has_text="Running").locator(".value")).not_to_have_text("0")
            expect(page.locator(".pool canvas")).to_have_attribute("aria-label", re.compile(r"Engine 0: [1-9]\d*"))
            line = page.locator("[data-chart='KV blocks'] polyline").first
            drawn = line.get_attribute("points")
            expect(line).not_to_have_attribute("points", drawn)
            page.goto(f"{gateway_url}/#scheduler")
            expect(page.locator("#waiting tbody tr").first).to_contain_text(re.compile("KV blocks|may not pass"))
            expect(page.locator("#decisions")).to_contain_text("started")
            line = page.locator("#decision-line svg[role=img]")
            expect(line).to_have_attribute(
                "aria-label", re.compile(r"The last \d+ decisions, over .*: [1-9]\d* started")
            )
            expect(line.locator(".mark.started").first).to_be_attached()
            with page.expect_download() as download:
                page.click("#trace")
            assert '"traceEvents"' in download.value.path().read_text()
            watched.assert_accessible()
            page.goto(f"{gateway_url}/#overview")
            watched.assert_accessible()
            page.reload()
            expect(page.locator("#requests tbody tr").first).to_be_visible()
            for name, (width, height) in WIDTHS.items():
                page.set_viewport_size({"width": width, "height": height})
                page.screenshot(path=tmp_path / f"{name}.png", full_page=True)
                assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{name} scrolls sideways"
        expect(page.locator("#requests")).to_contain_text("No requests")
    assert watched.complaints == watched.outside == []


@contextlib.contextmanager
def scripted_gateway(prepare: Callable[[FakeGateway], None]) -> Iterator[str]:
    """The real application over an engine in a state that a real one is seldom in; in a thread of its own."""
    urls: queue.Queue[str] = queue.Queue()
    done = threading.Event()

    async def serve() -> None:
        async with fake_gateway() as gateway:
            await gateway.ready()
            prepare(gateway)
            urls.put(f"http://127.0.0.1:{gateway.address[1]}")
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        yield urls.get(timeout=60)
    finally:
        done.set()
        thread.join()


def test_swaps_and_queues_beyond_what_is_listed_are_shown(chromium):
    def prepare(gateway: FakeGateway) -> None:
        receiver = gateway.runtime.snapshot_receiver
        host = {"host_blocks_total": 4000, "host_blocks_used": 620, "swapped_bytes_total": {"out": 1.25e9, "in": 999}}
        receiver.latest = {0: snapshot(**host, swap_failures_total={"no_room": 2, "copy": 0})}
        waiting = [state(f"cmpl-{number}-0123abcd", Phase.WAITING, "behind_head") for number in range(250)]
        receiver.requests[0] = [state("cmpl-x-0123abcd", Phase.SWAPPED, "blocks", output_tokens=9), *waiting]

    with scripted_gateway(prepare) as url, WatchedPage(chromium, url) as watched:
        page = watched.open("overview")
        tile = page.locator(".tile", has_text="Swapped")
        expect(tile.locator(".value")).to_have_text("1")
        expect(tile.locator(".note")).to_have_text("1.25 GB out, 999 B in so far; 2 failed")
        expect(page.locator(".pool")).to_contain_text("host memory 620 of 4,000 blocks, 16 %")
        watched.open("scheduler")
        expect(page.locator("#waiting-note")).to_have_text("the first 200; 51 more")
        expect(page.locator("#waiting tbody tr")).to_have_count(200)
        watched.assert_accessible()
    assert watched.complaints == watched.outside == []


def test_what_a_native_scheduler_does_not_tell_is_not_shown_as_zero(chromium):
    with scripted_gateway(lambda _: None) as url, WatchedPage(chromium, url) as watched:
        page = watched.open("overview")
        for name in ("Running", "Waiting", "Yields"):
            expect(page.locator(".tile", has_text=name).locator(".value")).to_have_text("\u2013")
        chart = page.locator("[data-chart='Requests']")
        expect(chart.locator("svg")).to_have_attribute("aria-label", "Requests: running \u2013, waiting \u2013")
        expect(chart).to_contain_text("this scheduler does not tell")
        expect(chart.locator("polyline")).to_have_count(0)
    assert watched.complaints == watched.outside == []


def test_the_docs_site_loads_nothing_from_elsewhere(chromium, tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--config-file", ROOT / "mkdocs.yml"]
    subprocess.run([*command, "--site-dir", tmp_path / "site"], check=True, capture_output=True)
    handler = functools.partial(QuietFiles, directory=str(tmp_path / "site"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with WatchedPage(chromium, f"http://127.0.0.1:{server.server_port}") as watched:
                page = watched.page
                page.goto(f"http://127.0.0.1:{server.server_port}/")
                expect(page.locator("h1")).to_have_text(re.compile("Proxima Gateway"))
                page.locator("input.md-search__input").fill("backfilling")
                expect(page.locator(".md-search-result__item").first).to_be_visible()
                page.goto(f"http://127.0.0.1:{server.server_port}/concepts/")
                # Pictures are there, and not only their words.
                assert page.evaluate("[...document.images].every((image) => image.complete && image.naturalWidth > 0)")
        finally:
            server.shutdown()
            thread.join()
    assert watched.complaints == watched.outside == []


class QuietFiles(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_chat_streams_and_can_be_pasted_elsewhere(chromium, gateway_url, scheme):
    with WatchedPage(chromium, gateway_url, color_scheme=scheme, permissions=["clipboard-read", "clipboard-write"]) as (
        watched
    ):
        page = watched.open("chat")
        page.get_by_label("Temperature").fill("0")
        page.get_by_label("Message", exact=True).fill("What is the capital of France?")
        # The key alone is enough, without a mouse.
        page.keyboard.press("Enter")
        expect(page.locator("#transcript li").last).to_contain_text("The capital of France is Paris.")
        expect(page.locator(".timing rect")).not_to_have_count(0)
        expect(page.locator(".timing p")).to_contain_text("first after")
        page.click("#clear")
        page.fill("#prompt", "What is the capital of France?")
        page.click("#copy-curl")
        expect(page.locator("#copy-curl")).to_have_text("Copied")
        command = page.evaluate("navigator.clipboard.readText()")
        answer = subprocess.run(["bash", "-c", f"{command} --silent"], capture_output=True, text=True, check=True)
        assert "Paris" in answer.stdout
        assert answer.stdout.rstrip().endswith("data: [DONE]")
        page.click("#copy-python")
        code = page.evaluate("navigator.clipboard.readText()")
        compile(code, "copied", "exec")
        assert "undefined" not in code, "what the form leaves open is in no request"
        for view in VIEWS:
            watched.open(view)
            watched.assert_accessible()
    assert watched.complaints == watched.outside == []


def test_top_runs_in_a_terminal_of_80_by_24(gateway_url, tmp_path):
    tmux = shutil.which("tmux")
    if tmux is None:
        pytest.skip("tmux is not installed")
    server = [tmux, "-S", str(tmp_path / "tmux"), "-f", "/dev/null"]
    subprocess.run([*server, "new-session", "-d", "-x", "80", "-y", "24", f"{PROXIMA} top {gateway_url}"], check=True)

    def shown() -> list[str]:
        pane = subprocess.run([*server, "capture-pane", "-p"], capture_output=True, text=True, check=True)
        return pane.stdout.splitlines()

    def wait_for(pattern: str) -> list[str]:
        deadline_s = time.monotonic() + 60
        while not re.search(pattern, "\n".join(lines := shown())):
            assert time.monotonic() < deadline_s, lines
            time.sleep(0.2)
        return lines

    try:
        wait_for(r"ready.*up \d")
        with load(gateway_url, 24):
            lines = wait_for(r"running [1-9](.|\n)*decode(.|\n)*and \d+ more")
        assert max(map(len, lines)) <= 80
        wait_for("No requests")
    finally:
        subprocess.run([*server, "kill-server"], check=False)


def test_keys_are_asked_for_and_a_drain_and_a_restart_are_seen(chromium, tiny_model, tmp_path):
    (port,) = free_ports(1)
    flags = [str(tiny_model), "--port", str(port), *TINY]
    environment = {"PROXIMA__ADMIN__TOKEN": TOKEN, "PROXIMA__AUTH__API_KEYS": API_KEY}
    headers = {"authorization": f"Bearer {API_KEY.partition('=')[2]}"}
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(GatewayProcess(flags, tmp_path / "first", environment))
        first.wait_ready()
        watched = stack.enter_context(WatchedPage(chromium, first.url))
        page = watched.open("overview")
        give_secret(page, "Admin token", "wrong")
        give_secret(page, "Admin token", TOKEN)
        expect(page.locator("#pill")).to_have_text("ready")
        watched.open("chat")
        give_secret(page, "API key", headers["authorization"].removeprefix("Bearer "))
        expect(page.locator("select[name=model] option")).not_to_have_count(0)
        page.reload()
        expect(page.locator("#pill")).to_have_text("ready")
        assert page.locator("dialog[open]").count() == 0, "it asks again although it was told"
        with load(first.url, 16, words=5, tokens=2000, headers=headers):
            watched.open("overview")
            expect(page.locator("#requests tbody tr").first).to_be_visible()
            first.process.send_signal(signal.SIGTERM)
            expect(page.locator("#banner")).to_contain_text(re.compile(r"Draining: no new requests\. \d+ requests? ha"))
            expect(page.locator("#pill")).to_have_text("draining")
        first.wait_exit()
        expect(page.locator("#pill")).to_have_text("no connection")
        second = stack.enter_context(GatewayProcess(flags, Path(tmp_path / "second"), environment))
        second.wait_listening()
        expect(page.locator("#banner")).to_have_text("The engine is loading.")
        expect(page.locator("#pill")).to_have_text("starting")
    assert watched.outside == []


def give_secret(page, label: str, secret: str) -> None:
    field = page.get_by_label(label)
    expect(field).to_be_focused()
    field.fill(secret)
    page.keyboard.press("Enter")
