"""`proxima doctor`: what would keep this machine from serving."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from proxima_config import arguments
from proxima_config.command import Command

if TYPE_CHECKING:
    from proxima_server.doctor.finding import Finding

_EXAMPLES = """\
  proxima doctor                                       the embedded model with its defaults
  proxima doctor meta-llama/Llama-2-7b-chat-hf         can it be had, and does it fit?
  proxima doctor --config proxima.yaml --port 8123     what `proxima serve` would be given
  proxima doctor --json                                for scripts; exit code 1 when something blocks
"""


def _configure(parser: argparse.ArgumentParser) -> None:
    arguments.add_model_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments.add_arguments(parser)


def _run(options: argparse.Namespace) -> int:
    loaded = arguments.load(options)
    from proxima_server.doctor.examination import examine
    from proxima_server.doctor.finding import Level
    from proxima_server.doctor.subject import Subject

    found = []
    for name, finding in examine(Subject(loaded.settings, loaded.max_model_len_bound)):
        found.append((name, finding))
        if not options.json:
            # As they come: asking the model hub takes a moment.
            sys.stdout.write(_line(name, finding) + "\n")
            sys.stdout.flush()
    counts = {level: sum(finding.level is level for _, finding in found) for level in Level}
    if options.json:
        sys.stdout.write(json.dumps(_as_json(found, healthy=not counts[Level.BLOCKER]), indent=2) + "\n")
    else:
        sys.stdout.write(_summary(counts[Level.BLOCKER], counts[Level.WARNING]) + "\n")
    return 1 if counts[Level.BLOCKER] else 0


def _line(name: str, finding: Finding) -> str:
    return f"{finding.level:<8} {name:<14} {finding.message}" + (f"  ->  {finding.remedy}" if finding.remedy else "")


def _summary(blockers: int, warnings: int) -> str:
    rest = f", {warnings} warnings" if warnings else ""
    if blockers:
        return f"`proxima serve` would not work: {blockers} blockers{rest}"
    return f"nothing blocks{rest}"


def _as_json(found: list[tuple[str, Finding]], *, healthy: bool) -> dict[str, object]:
    return {
        "healthy": healthy,
        "findings": [
            {"check": name, "level": finding.level, "message": finding.message, "remedy": finding.remedy}
            for name, finding in found
        ],
    }


COMMAND = Command(
    summary="Find what would keep this machine from serving, with the remedy.",
    examples=_EXAMPLES,
    configure=_configure,
    run=_run,
)
