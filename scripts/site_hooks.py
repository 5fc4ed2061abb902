"""What MkDocs is told about docs/ beyond mkdocs.yml, so that the pages stay plain Markdown that GitHub shows as well.

Links that leave docs/, such as ../README.md, work on GitHub as they are; in the site they lead to GitHub. Pages that
the navigation does not name are put at its end.
"""

from __future__ import annotations

import logging
import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
_LINK = re.compile(r"(?<=\]\()(\.\./[^)#\s]*)(#[^)\s]*)?(?=\))")
# MkDocs counts its warnings, and a strict build fails of them.
_logger = logging.getLogger("mkdocs.hooks.site")


def on_config(config: Any) -> None:
    named = set(_pages(config.nav))
    decisions = sorted(page.relative_to(DOCS).as_posix() for page in (DOCS / "decisions").glob("[0-9]*.md"))
    config.nav += [{"Decisions": ["decisions/README.md", *decisions]}]
    named |= {"decisions/README.md", *decisions}
    pages = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))
    if more := [page for page in pages if page not in named]:
        config.nav += [{"More": more}]


def _pages(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [page for part in parts for page in _pages(part)]


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    source = DOCS / page.file.src_uri

    def lead_to_github(link: re.Match[str]) -> str:
        target = (source.parent / link[1]).resolve()
        if target.is_relative_to(DOCS):
            return link[0]
        if not target.exists() or not target.is_relative_to(ROOT):
            _logger.warning("%s links to %s, which is not there", page.file.src_uri, link[1])
        kind = "tree" if target.is_dir() else "blob"
        return f"{_repository()}/{kind}/main/{target.relative_to(ROOT).as_posix()}{link[2] or ''}"

    return _LINK.sub(lead_to_github, markdown)


def _repository() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["urls"]["Documentation"]).partition("/tree/")[0]
