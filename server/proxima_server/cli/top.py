"""`proxima top`: watch a gateway in a terminal."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import TYPE_CHECKING

from proxima_config.command import Command

if TYPE_CHECKING:
    from proxima_server.top.source import Source

TOKEN_VARIABLE = "PROXIMA__ADMIN__TOKEN"  # noqa: S105 - the name of a variable
RETRY_S = 1.0

_EXAMPLES = """\
  proxima top                                           the gateway of this machine
  proxima top https://llm.example.com --token TOKEN     another one, as its operator
  proxima top --once                                    print once and end
  proxima top --once --json | jq .engine.running        for scripts; without --once a line each second
"""


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "url", nargs="?", default="http://127.0.0.1:8000", metavar="URL", help="of the gateway, or of its admin.port"
    )
    parser.add_argument(
        "--token", default=os.environ.get(TOKEN_VARIABLE, ""), help=f"the admin token; else ${TOKEN_VARIABLE}"
    )
    parser.add_argument("--once", action="store_true", help="print what there is now and end")
    parser.add_argument("--json", action="store_true", help="print JSON, as /debug/live answers it")


def _run(options: argparse.Namespace) -> int:
    from proxima_server.top.source import Source

    source = Source(options.url, options.token)
    if options.json:
        return _print_json(source, once=options.once)
    return _print_once(source) if options.once else _watch(source)


def _print_json(source: Source, *, once: bool) -> int:
    if once:
        sys.stdout.write(json.dumps(source.once(), indent=2) + "\n")
        return 0
    for document in source.follow():
        sys.stdout.write(json.dumps(document) + "\n")
        sys.stdout.flush()
    return 0


def _print_once(source: Source) -> int:
    from rich.console import Console

    from proxima_server.top.screen import screen

    console = Console()
    console.print(screen(source.once(), width=console.width))
    return 0


def _watch(source: Source) -> int:
    """Until Ctrl-C; a gateway that goes away may come back."""
    from rich.live import Live
    from rich.text import Text

    from proxima_server.top.screen import screen
    from proxima_server.top.source import SourceError

    with Live(Text("connecting"), screen=True, auto_refresh=False) as live:
        console = live.console
        while True:
            why = "the gateway has ended"
            try:
                for document in source.follow():
                    live.update(screen(document, console.height, console.width), refresh=True)
            except SourceError as error:
                why = str(error)
            live.update(Text(f"{why}\ntrying again; Ctrl-C ends", "yellow"), refresh=True)
            time.sleep(RETRY_S)


COMMAND = Command(
    summary="Watch a gateway: requests, KV blocks, latencies.",
    examples=_EXAMPLES,
    configure=_configure,
    run=_run,
)
