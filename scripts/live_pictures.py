"""Draw the pictures of the live view in docs/pictures: a real gateway with the embedded model, busy on a small pool.

    .venv/bin/python scripts/live_pictures.py                         # starts a gateway; two minutes
    .venv/bin/python scripts/live_pictures.py --url http://host:8000  # of one that runs and is busy

Needs the dev environment; Chromium is taken from the machine or from Debian's package.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests" / "support"))

from background_load import BackgroundLoad
from browser import browser
from gateway_process import GatewayProcess
from playwright.sync_api import Browser
from rich.console import Console

from proxima_server.top.screen import screen
from proxima_server.top.source import Source

PICTURES = ROOT / "docs" / "pictures"
FLAGS = ["--preset", "cpu-embedded", "--num-gpu-blocks-override", "192", "--max-num-batched-tokens", "512"]
STREAMS = 24
TIERS = ("default", "default", "default", "flex", "priority")
LEARNING_S = 25
"""Until answers have ended, from which the scheduler forecasts."""
CHARTS_S = 75
LAPTOP, WIDE, PHONE = (1280, 800), (1920, 1080), (390, 844)
# name -> view, width and height, colours
SHOTS = {
    "page": ("overview", LAPTOP, "light"),
    "page-dark": ("overview", WIDE, "dark"),
    "page-scheduler": ("scheduler", LAPTOP, "light"),
    "page-phone": ("overview", PHONE, "dark"),
}


def of_random_length(number: int, rng: random.Random) -> dict[str, Any]:
    return {
        "prompt": f"{number} " * rng.randint(20, 200),
        "max_tokens": rng.randint(60, 500),
        "service_tier": rng.choice(TIERS),
    }


def draw_top(url: str) -> None:
    console = Console(width=80, height=24, record=True, file=io.StringIO(), force_terminal=True)
    console.print(screen(Source(url, "").once(), console.height, console.width))
    # Text in whatever monospaced font there is: the picture asks nobody for one.
    picture = console.export_svg(title="proxima top", code_format=_without_fonts())
    (PICTURES / "top.svg").write_text(picture, encoding="utf-8")


def _without_fonts() -> str:
    from rich._export_format import CONSOLE_SVG_FORMAT

    before, face, rest = CONSOLE_SVG_FORMAT.partition("@font-face")
    after = rest[rest.rindex("@font-face") :]
    kept = after.partition("}}")[2]
    return (before + kept if face else CONSOLE_SVG_FORMAT).replace("Fira Code", "DejaVu Sans Mono")


def draw_page(url: str, chromium: Browser) -> None:
    pages = {}
    for name, (view, (width, height), colours) in SHOTS.items():
        pages[name] = chromium.new_page(viewport={"width": width, "height": height}, color_scheme=colours)
        pages[name].goto(f"{url}/#{view}")
    time.sleep(CHARTS_S)
    for name, page in pages.items():
        page.bring_to_front()
        page.wait_for_timeout(2500)
        page.screenshot(path=PICTURES / f"{name}.png")


@contextlib.contextmanager
def busy_gateway() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder, GatewayProcess(FLAGS, Path(folder) / "log") as gateway:
        gateway.wait_ready()
        with BackgroundLoad(gateway.url, STREAMS, of_random_length):
            time.sleep(LEARNING_S)
            yield gateway.url


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", help="a gateway that runs and is busy; without it one is started")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "chromium", help="where Chromium is unpacked")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        url = options.url or stack.enter_context(busy_gateway())
        draw_page(url, stack.enter_context(browser(options.cache)))
        draw_top(url)
    print(f"drew {', '.join([*SHOTS, 'top'])} in {PICTURES.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
