"""Write the generated pages under docs/, or check that they are fresh.

.venv/bin/python scripts/generate_docs.py            # write
.venv/bin/python scripts/generate_docs.py --check    # exit 1 and name the stale pages
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from proxima_config.metrics_catalogue import metrics_page
from proxima_config.reference import configuration_page

# Scripts beside this one: PYTHONSAFEPATH keeps their folder off the path.
sys.path.append(str(Path(__file__).resolve().parent))
from compatibility_page import compatibility_page
from decisions_page import decisions_page

DOCS = Path(__file__).resolve().parent.parent / "docs"
# Page below docs/ -> what renders it.
PAGES: dict[str, Callable[[], str]] = {
    "compatibility.md": compatibility_page,
    "configuration.md": configuration_page,
    "decisions/README.md": decisions_page,
    "metrics.md": metrics_page,
}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--check", action="store_true", help="compare only")
    check = options.parse_args().check
    stale = []
    for name, render in PAGES.items():
        page, text = DOCS / name, render()
        if page.exists() and page.read_text(encoding="utf-8") == text:
            continue
        if check:
            stale.append(name)
        else:
            page.write_text(text, encoding="utf-8")
    for name in stale:
        print(f"docs/{name} is stale: run `make docs`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
