"""The report in a browser: it draws, asks nobody for anything, and fits screens of two widths."""

from __future__ import annotations

import pytest
from browser import WatchedPage, browser
from result_files import compared, lab_compared, lab_sweep, profiled, served, tuned, write

from proxima_bench.html import profile_page
from proxima_server.cli.main import main

pytestmark = pytest.mark.slow

RESULTS = (compared, lab_sweep, lab_compared, served, tuned)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser(tmp_path_factory.getbasetemp() / "chromium") as launched:
        yield launched


@pytest.fixture(scope="module", params=["en", "zh"])
def address(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    files = [str(write(folder / f"{make.__name__}.json", make())) for make in RESULTS]
    out = folder / "report.html"
    assert main(["bench", "report", *files, "--out", str(out), "--lang", request.param]) == 0
    return out.as_uri()


@pytest.mark.parametrize("width", [1280, 390])
def test_it_draws_and_asks_nobody(chromium, address, width):
    with WatchedPage(chromium, address, viewport={"width": width, "height": 900}) as watched:
        page = watched.page
        page.goto(address)
        assert page.locator("article").count() == len(RESULTS)
        plots = page.locator("figure.plot svg")
        assert plots.count() > 20
        # Each is on the page, not only in it, and has lines.
        boxes = [plots.nth(number).bounding_box() for number in range(plots.count())]
        assert all(box and box["width"] > 200 and box["height"] > 60 for box in boxes)
        assert page.locator("figure.plot svg path").count() > 100
        # Only what may be scrolled by itself is wider than the screen.
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        watched.assert_accessible()
        page.locator("details summary").first.click()
        assert (watched.complaints, watched.outside) == ([], [])
        page.emulate_media(media="print")
        for sent in page.locator("details").all():
            assert not sent.is_visible()
        # Whatever is told on the screen is on paper too: tables of every load, and which line is whose.
        assert page.locator(".at-load").count() > 3
        shown = [table.is_visible() for table in page.locator("table").all()]
        assert all(shown)
        assert all(look.is_visible() for look in page.locator(".arms .look").all())


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_page_of_a_profile_too(chromium, tmp_path, width, language):
    path = tmp_path / "profile.html"
    path.write_text(profile_page.page(profiled(), language), encoding="utf-8")
    with WatchedPage(chromium, path.as_uri(), viewport={"width": width, "height": 900}) as watched:
        page = watched.page
        page.goto(path.as_uri())
        plots = page.locator("figure.plot svg")
        boxes = [plots.nth(number).bounding_box() for number in range(plots.count())]
        assert len(boxes) == 2
        assert all(box and box["width"] > 200 and box["height"] > 60 for box in boxes)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        watched.assert_accessible()
        assert (watched.complaints, watched.outside) == ([], [])
