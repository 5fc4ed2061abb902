"""Entry point of the console script `proxima`."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points, version

from proxima_config.command import ENTRY_POINT_GROUP, Command
from proxima_config.command_parser import CommandParser
from proxima_config.errors import ProximaError
from proxima_config.import_path import keep_repository_root_off_path

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    keep_repository_root_off_path()
    try:
        options = _build_parser().parse_args(argv)
        command: Command = options.command
        return command.run(options)
    except ProximaError as error:
        logging.getLogger(__name__).debug("traceback of the error below", exc_info=True)
        sys.stderr.writelines(f"proxima: error: {line}\n" for line in str(error).splitlines())
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output (head, less) went away: not our failure, and nothing more can be printed.
        sys.stderr.close()
        return 0


def _build_parser() -> CommandParser:
    parser = CommandParser(
        prog="proxima",
        description="OpenAI-compatible serving gateway over vLLM, scheduled by Proxima.",
    )
    parser.add_argument("--version", action="version", version=f"proxima {version('proxima-gateway')}")
    words = parser.add_subparsers(metavar="COMMAND", required=True)
    for entry_point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda entry: entry.name):
        command: Command = entry_point.load()
        word = words.add_parser(
            entry_point.name,
            help=command.summary,
            description=command.summary,
            epilog=f"examples:\n{command.examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        word.set_defaults(command=command)
        command.configure(word)
    return parser
