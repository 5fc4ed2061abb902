"""`proxima config`: what the settings are, whether a file is valid, and the schema for editors."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from proxima_config import arguments
from proxima_config.command import Command
from proxima_config.json_schema import settings_schema
from proxima_config.layering import load_settings
from proxima_config.overview import as_json, as_table, rows

_EXAMPLES = """\
  proxima config show --port 8123              effective values and where each came from
  proxima config show --config proxima.yaml --json
  proxima config show --all                    with vLLM's own defaults
  proxima config check proxima.yaml            exit 0 when valid, 2 with every problem otherwise
  proxima config schema > proxima.schema.json  JSON Schema of the file, for editors and Helm
"""


def _configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    show = actions.add_parser("show", help="print the effective settings and the origin of each")
    show.add_argument("--json", action="store_true", help="print JSON")
    show.add_argument("--all", action="store_true", help="list the vLLM flags that have vLLM's own default, too")
    arguments.add_arguments(show)
    show.set_defaults(action=_show)
    check = actions.add_parser("check", help="validate a configuration file by itself")
    check.add_argument("file", type=Path, metavar="FILE")
    check.set_defaults(action=_check)
    schema = actions.add_parser("schema", help="print the JSON Schema of the configuration file")
    schema.set_defaults(action=_schema)


def _run(options: argparse.Namespace) -> int:
    sys.stdout.write(options.action(options))
    sys.stdout.flush()
    return 0


def _show(options: argparse.Namespace) -> str:
    loaded = arguments.load(options)
    if options.json:
        return json.dumps(as_json(loaded, every_flag=options.all), indent=2) + "\n"
    return as_table(loaded, every_flag=options.all)


def _check(options: argparse.Namespace) -> str:
    loaded = load_settings(environ={}, config_file=options.file)
    count = sum(row.origin.startswith("file ") for row in rows(loaded))
    return f"{options.file}: valid ({count} settings, preset {loaded.preset})\n"


def _schema(_: argparse.Namespace) -> str:
    return json.dumps(settings_schema(), indent=2) + "\n"


COMMAND = Command(
    summary="Show, check or describe the configuration.",
    examples=_EXAMPLES,
    configure=_configure,
    run=_run,
)
