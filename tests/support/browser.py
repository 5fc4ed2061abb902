"""A real headless Chromium, installed or from Debian's package, and what it must not do on our page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import debian
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

PATIENCE_MS = 60_000
"""Far above what is usual: engine, browser and load share two cores."""
_SERIOUS = ("serious", "critical")


def program(cache: Path) -> tuple[Path, dict[str, str]]:
    """Chromium and the environment that it needs; skips the test where there is none to be had.

    What was unpacked into `cache` before is used again.
    """
    if (found := shutil.which("chromium")) is not None:
        return Path(found), dict(os.environ)
    path = cache / "usr/lib/chromium/chromium"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        debian.unpack_with_dependencies("chromium", cache)
    libraries = sorted({str(path.parent) for path in (cache / "usr" / "lib").rglob("*.so*")})
    # Its own libraries stay behind those of the machine where both have one.
    return path, {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(libraries)}


@contextmanager
def browser(cache: Path) -> Iterator[Browser]:
    path, environment = program(cache)
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, env=environment, args=["--disable-gpu"])
        try:
            yield launched
        finally:
            launched.close()


class WatchedPage:
    """A page that notes what it complains about and whom it asks."""

    def __init__(self, browser: Browser, url: str, **context: Any) -> None:
        self._url = url
        self._context = browser.new_context(**context)
        self.page: Page = self._context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.complaints: list[str] = []
        self.outside: list[str] = []
        self.page.on("console", lambda message: self._complain(message.type, message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self._note(request.url))

    def __enter__(self) -> WatchedPage:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()

    def open(self, view: str) -> Page:
        self.page.goto(f"{self._url}/#{view}")
        return self.page

    def assert_accessible(self) -> None:
        violations = Axe().run(self.page).response["violations"]
        serious = {each["id"]: each["nodes"][0]["html"] for each in violations if each["impact"] in _SERIOUS}
        assert not serious

    def _complain(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)

    def _note(self, url: str) -> None:
        if urlsplit(url).netloc != urlsplit(self._url).netloc and not url.startswith(("data:", "blob:")):
            self.outside.append(url)
