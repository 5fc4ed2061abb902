"""Draws docs/pictures/{page.png,top.svg} from a gateway that runs and is busy: scripts/live_pictures.py URL CHROMIUM"""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path

from playwright.sync_api import sync_playwright
from rich.console import Console

from proxima_server.top.screen import screen
from proxima_server.top.source import Source

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
CHARTS_FILL_S = 75


def draw_top(url: str) -> None:
    console = Console(width=80, height=24, record=True, file=io.StringIO(), force_terminal=True)
    console.print(screen(Source(url, "").once(), console.height, console.width))
    console.save_svg(str(PICTURES / "top.svg"), title="proxima top")


def draw_page(url: str, chromium: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(url)
        time.sleep(CHARTS_FILL_S)
        page.screenshot(path=PICTURES / "page.png")
        browser.close()


if __name__ == "__main__":
    _, address, browser_path = sys.argv
    draw_top(address)
    draw_page(address, browser_path)
