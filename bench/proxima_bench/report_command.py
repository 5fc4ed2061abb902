"""`proxima bench report`: results as one HTML page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from proxima_config.command import Command
from proxima_config.errors import ProximaError

_EXAMPLES = """\
  proxima bench compare --preset pressure --json > pressure.json
  proxima bench report pressure.json --out pressure.html
  proxima lab sweep --arms native,proxima --json > lab.json
  proxima bench report pressure.json lab.json --out both.html --lang zh

Takes what `bench serve`, `compare` and `sweep`, and `lab run`, `compare` and `sweep` print with --json.
"""


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s FILE... --out FILE.html [--lang en|zh]"
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="results as JSON")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the page goes")
    parser.add_argument("--lang", choices=("en", "zh"), default="en", help="language of the page (default: en)")


def _run(options: argparse.Namespace) -> int:
    from proxima_bench.html import page, results

    text = page.page([results.read(path) for path in options.files], options.lang)
    try:
        options.out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ProximaError(f"{options.out}: cannot be written ({error.strerror})") from error
    sys.stderr.write(f"proxima bench: wrote {options.out} ({len(text) // 1024} KiB)\n")
    return 0


ACTION = Command(
    summary="Make one HTML page, without a network, of results.",
    examples=_EXAMPLES,
    configure=_configure,
    run=_run,
)
