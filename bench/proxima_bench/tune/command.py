"""`proxima tune` on the command line."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from proxima_config.command import Command
from proxima_config.errors import UsageError

_EXAMPLES = """\
  proxima tune --quick                                      the embedded model, a few trials, ten minutes on two cores
  proxima tune --model meta-llama/Llama-3.1-8B-Instruct --preset long-tail --slo-stall-s 0.2 --out tuned.yaml
  proxima tune --preset throughput --objective output_tokens_per_s --out tuned.yaml -- --tensor-parallel-size 2
  proxima serve --config tuned.yaml
  proxima bench report tuned.trials.json --out tuned.html

Each trial starts an engine of its own, measures it under the load, and ends it; the best is then compared with native
scheduling and with the defaults, in turns. What was measured is kept in a file beside --out, so the same command goes
on where it was stopped. Flags after -- are those of `proxima serve`, for every trial, and stay as they are.
exit code: 0 done, also where nothing better was found; 1 the baseline failed; 2 wrong usage.
"""
OBJECTIVES = ("goodput_rps", "attainment", "output_tokens_per_s")
_TERMINATED = 143


def _configure(parser: argparse.ArgumentParser) -> None:
    from proxima_bench import load_flags

    parser.usage = "%(prog)s [--quick] [--model MODEL] [--out FILE] [load flags] [-- flags of every trial]"
    parser.add_argument("--model", metavar="MODEL", help="what is served (default: as proxima serve)")
    parser.add_argument(
        "--objective", choices=OBJECTIVES, default=OBJECTIVES[0], help="what is to become more (default: goodput_rps)"
    )
    parser.add_argument("--quick", action="store_true", help="one value for each setting instead of several")
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        metavar="N",
        help="of the comparison at the end (5; fewer can never be sure)",
    )
    parser.add_argument("--out", type=Path, default=Path("tuned.yaml"), metavar="FILE", help="settings (tuned.yaml)")
    parser.add_argument("--trials", type=Path, metavar="FILE", help="trials (default: beside --out, .trials.json)")
    parser.add_argument(
        "--logs", type=Path, metavar="FOLDER", help="where the engines' logs go (default: a new folder)"
    )
    load_flags.add_arguments(parser)
    parser.set_defaults(preset="interactive")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("engine_flags", nargs="*", metavar="-- FLAGS", help=argparse.SUPPRESS)


def _run(options: argparse.Namespace) -> int:
    import uvloop
    from rich.console import Console

    from proxima_bench.tune import run

    if options.rounds < 1:
        raise UsageError(f"--rounds must be at least 1, not {options.rounds}")
    try:
        found = uvloop.run(run.tune(options, Console(stderr=True)))
    except asyncio.CancelledError:
        return _TERMINATED
    text = json.dumps(found, indent=2, ensure_ascii=False) if options.json else "\n".join(found["said"])
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
    return 0


COMMAND = Command(
    summary="Try settings under a load, and write those that serve it best.",
    examples=_EXAMPLES,
    configure=_configure,
    run=_run,
)
