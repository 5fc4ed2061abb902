"""`proxima key`: API keys for the keys file."""

from __future__ import annotations

import argparse
import json
import re
import secrets
import sys
from pathlib import Path

from proxima_config.api_keys import NAME, digest, read_keys_file
from proxima_config.command import Command
from proxima_config.errors import UsageError

PREFIX = "sk-proxima-"
"""Tells secret scanners what they have found."""
_RANDOM_BYTES = 32

_EXAMPLES = """\
  proxima key new team-a               a new key, and its entry for the keys file
  proxima key new team-a --json
  proxima key check keys.yaml          exit 0 when valid, 2 with every problem otherwise
"""


def _configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    new = actions.add_parser("new", help="make a key; it is shown once, only its hash is kept")
    new.add_argument("name", metavar="NAME", help="whose key it is; shown in logs and metrics")
    new.add_argument("--json", action="store_true", help="print JSON")
    new.set_defaults(action=_new)
    check = actions.add_parser("check", help="validate a keys file")
    check.add_argument("file", type=Path, metavar="FILE")
    check.set_defaults(action=_check)


def _run(options: argparse.Namespace) -> int:
    sys.stdout.write(options.action(options))
    sys.stdout.flush()
    return 0


def _new(options: argparse.Namespace) -> str:
    if not re.match(NAME, options.name):
        raise UsageError(f"NAME: {options.name!r} must be letters, digits, '.', '_' and '-', at most 64 of them")
    secret = PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    entry = {"name": options.name, "sha256": digest(secret)}
    if options.json:
        return json.dumps({"key": secret, "entry": entry}, indent=2) + "\n"
    return (
        f"{secret}\n\n"
        "Give the line above to its owner: it cannot be shown again. Put this under `keys:` into the file that\n"
        "auth.api_keys_file names; a running gateway reads it at once:\n\n"
        f"  - name: {entry['name']}\n    sha256: {entry['sha256']}\n"
    )


def _check(options: argparse.Namespace) -> str:
    keys = len(read_keys_file(options.file))
    return f"{options.file}: valid ({keys} keys{'' if keys else ': nobody gets in'})\n"


COMMAND = Command(
    summary="Make API keys, and check a keys file.",
    examples=_EXAMPLES,
    configure=_configure,
    run=_run,
)
