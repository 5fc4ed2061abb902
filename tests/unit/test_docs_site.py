"""docs/ as a site: it builds without a warning, links lead somewhere, and nothing comes from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
_LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data"}
"""Elements whose attribute a browser fetches by itself."""
_HARMLESS_LINKS = {"canonical", "prev", "next"}


def build(config: Path, target: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--config-file", str(config), "--site-dir", str(target)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`make docs` without writing anything into the repository."""
    target = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", target)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "WARNING" not in done.stderr
    return target


class Fetched(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        address = values.get(_LOADS.get(tag, "")) or ""
        if tag == "link" and values.get("rel") not in _HARMLESS_LINKS:
            address = values.get("href") or ""
        if address:
            self.addresses.append(address)


def test_every_page_is_in_the_site_and_its_lists_are_lists(site: Path):
    for page in DOCS.rglob("*.md"):
        relative = page.relative_to(DOCS).with_suffix("")
        folder = relative.parent if relative.name == "README" else relative
        html = (site / folder / "index.html").read_text(encoding="utf-8")
        # GitHub makes a list right behind a paragraph one; Python's Markdown wants an empty line between them.
        assert not re.search(r"<p>(?:(?!</p>).)*\n(?:\* |- |\d+\. |\| )", html, re.DOTALL), page.name


def test_a_browser_is_sent_nowhere_else(site: Path):
    for path in site.rglob("*.html"):
        fetched = Fetched()
        fetched.feed(path.read_text(encoding="utf-8"))
        assert len(fetched.addresses) > 3
        outside = [address for address in fetched.addresses if re.match(r"(?:https?:)?//", address)]
        assert not outside, path
    for path in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//", path.read_text(encoding="utf-8")), path


def test_links_that_leave_the_folder_lead_to_the_repository(site: Path):
    html = (site / "architecture" / "index.html").read_text(encoding="utf-8")
    assert 'href="https://github.com/proxima-gateway/proxima-gateway/tree/main/server/proxima_server"' in html
    assert (
        'href="https://github.com/proxima-gateway/proxima-gateway/blob/main/tests/unit/test_vllm_contract.py"' in html
    )


def test_links_that_lead_nowhere_fail_the_build(tmp_path: Path):
    """In a copy that has one page: what matters are rules and hooks."""
    pages = {
        "README.md": "# Home\n\n[a](gone.md) [b](#nowhere) [c](../gone.py)\n",
        "decisions/README.md": "# Decisions\n",
    }
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[0] + "\nnav: [README.md]\n"
    files = {f"docs/{name}": text for name, text in pages.items()} | {"mkdocs.yml": config}
    files |= {name: (ROOT / name).read_text(encoding="utf-8") for name in ("scripts/site_hooks.py", "pyproject.toml")}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode == 1
    for link in ("gone.md", "#nowhere", "../gone.py"):
        assert re.search(f"WARNING.*{re.escape(link)}", done.stderr)


def test_links_of_the_repositorys_readme_lead_somewhere():
    """It is not part of the site, whose build checks all others."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"[a-z]+:", link)]
    assert len(links) > 30
    assert [link for link in links if not leads_somewhere(link)] == []
    assert not leads_somewhere("docs/gone.md")
    assert not leads_somewhere("docs/live.md#nowhere")


def leads_somewhere(link: str) -> bool:
    """From the root of the repository, to a file or folder, and in a page to one of its headings."""
    name, _, anchor = link.partition("#")
    target = ROOT / (name or "README.md")
    if not target.exists():
        return False
    return not anchor or target.suffix != ".md" or anchor in anchors(target.read_text(encoding="utf-8"))


def anchors(text: str) -> set[str]:
    """Of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_what_troubleshooting_quotes_is_what_the_product_says():
    folders = [ROOT / name for name in ("server", "engine", "config", "scripts")]
    sources = "\n".join(path.read_text(encoding="utf-8") for folder in folders for path in folder.rglob("*.py"))
    quoted = re.findall(r"^\| (`[^|]*`[^|]*) \|", (DOCS / "faq.md").read_text(encoding="utf-8"), re.MULTILINE)
    said = [part for cell in quoted for part in re.findall(r"`([^`]+)`", cell)]
    assert len(said) > 20
    assert [part for part in said if part not in sources] == []
