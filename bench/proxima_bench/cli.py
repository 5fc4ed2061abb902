"""`proxima bench`: measure a server, alone or against others."""

from __future__ import annotations

import argparse

from proxima_bench import compare_command, profile_command, report_command, serve_command, sweep_command
from proxima_config.command import Command

_EXAMPLES = """\
  proxima bench serve --url http://127.0.0.1:8000 --preset throughput
  proxima bench serve --url http://127.0.0.1:8000 --requests 200 --poisson 4 --input-tokens 128 --output-tokens 64-256
  proxima bench compare --preset pressure
  proxima bench profile --preset pressure --out profile
  proxima bench report result.json --out report.html
  proxima bench serve --help        all kinds of load, prompts and limits
"""

_ACTIONS = {
    "serve": serve_command.ACTION,
    "compare": compare_command.ACTION,
    "sweep": sweep_command.ACTION,
    "profile": profile_command.ACTION,
    "report": report_command.ACTION,
}


def _configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    for name, action in _ACTIONS.items():
        word = actions.add_parser(
            name,
            help=action.summary,
            description=action.summary,
            epilog=f"examples:\n{action.examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        action.configure(word)
        word.set_defaults(action=action)


def _run(options: argparse.Namespace) -> int:
    action: Command = options.action
    return action.run(options)


COMMAND = Command(
    summary="Measure a server that speaks the OpenAI API.",
    examples=_EXAMPLES,
    configure=_configure,
    run=_run,
)
