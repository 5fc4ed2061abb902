"""`proxima bench compare`: several servers under the same load, in turns."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from proxima_config.command import Command

_EXAMPLES = """\
  proxima bench compare --preset pressure
  proxima bench compare --arms native,proxima --preset article --rounds 5 --markdown
  proxima bench compare --arms native,native+--max-num-seqs=64,proxima --preset long-tail --json > result.json
  proxima bench compare --arms "url:old=http://10.0.0.7:8000,url:new=http://10.0.0.8:8000" --poisson 4
  proxima bench compare --arms native,proxima --model meta-llama/Llama-3.1-8B-Instruct -- --tensor-parallel-size 2

Arms are native, proxima and gang (proxima serve with that scheduler), vllm (vLLM's own server with its own defaults),
one of these with flags (native+--max-num-seqs=64), or url:NAME=URL for a server that runs already. The others are
compared with the first. Flags after -- go to every arm that is started.
exit code: 0 measured; 1 an arm did not start, did not answer or ignored the lengths asked for; 2 wrong usage.
"""

_TERMINATED = 143
"""Exit code of a command that SIGTERM ended, as shells write it."""


def _configure(parser: argparse.ArgumentParser) -> None:
    from proxima_bench import load_flags

    parser.usage = "%(prog)s [--arms LIST] [flags] [-- flags of every arm]"
    parser.add_argument("--arms", metavar="LIST", help="what to compare (default: native,proxima, or the preset's)")
    parser.add_argument("--rounds", type=int, metavar="N", help="turns of each arm (default: 3)")
    parser.add_argument("--model", metavar="MODEL", help="what the arms serve (default: as proxima serve)")
    parser.add_argument(
        "--restart",
        action=argparse.BooleanOptionalAction,
        help="start each arm anew for each turn, alone on the machine, instead of all side by side "
        "(default: where a GPU or an arm of vLLM's own defaults leaves no room for two)",
    )
    parser.add_argument("--full", action="store_true", help="the whole preset, also where it was cut to suit a CPU")
    parser.add_argument("--api-key", help="sent as bearer token (default: OPENAI_API_KEY)")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="where the arms' logs go (default: a new folder)")
    load_flags.add_arguments(parser)
    output = parser.add_argument_group("report").add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print everything as JSON")
    output.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    parser.add_argument("engine_flags", nargs="*", metavar="-- FLAGS", help=argparse.SUPPRESS)


def _run(options: argparse.Namespace) -> int:
    import uvloop
    from rich.console import Console

    from proxima_bench import compare_run, comparison_report

    try:
        compared = uvloop.run(compare_run.run(options, Console(stderr=True)))
    except asyncio.CancelledError:
        return _TERMINATED
    if options.json:
        sys.stdout.write(json.dumps(comparison_report.as_json(compared), indent=2, ensure_ascii=False) + "\n")
    elif options.markdown:
        sys.stdout.write(comparison_report.markdown(compared))
    else:
        comparison_report.show(compared, Console())
    sys.stdout.flush()
    if compared.failure:
        sys.stderr.write(f"proxima bench: ended after {compared.rounds} rounds: {compared.failure}\n")
        return 1
    return 0


ACTION = Command(
    summary="Measure several servers under the same load, in turns, and report ratios with intervals.",
    examples=_EXAMPLES,
    configure=_configure,
    run=_run,
)
