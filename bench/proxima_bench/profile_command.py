"""`proxima bench profile`: a look into the engine while it is under load."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxima_config.command import Command
from proxima_config.errors import ProximaError, UsageError

if TYPE_CHECKING:
    from proxima_bench.profile_run import ProfilePlan

_EXAMPLES = """\
  proxima bench profile --preset pressure --out profile
  proxima bench profile --arms native,proxima,proxima+--swap --duration-s 3 --after-s 20 --out profile
  proxima bench profile --tool nsys --model meta-llama/Llama-3.1-8B-Instruct --full --out profile

Starts one arm after the other with a profiler set up, puts the load on it, and captures some seconds in the middle:
FOLDER/ARM/ gets the timelines, for https://ui.perfetto.dev (torch) or Nsight Systems (nsys), and with torch
FOLDER/profile.html shows the steps of all arms side by side. A profiler slows the engine down: these are no benchmarks.
exit code: 0 captured; 1 an arm failed; 2 wrong usage.
"""
_TERMINATED = 143
_MOST_S = 60.0


def _configure(parser: argparse.ArgumentParser) -> None:
    from proxima_bench import load_flags
    from proxima_bench.profile_run import NSYS, TORCH

    parser.usage = "%(prog)s --out FOLDER [--arms LIST] [flags] [-- flags of every arm]"
    parser.add_argument("--arms", default="native,proxima", metavar="LIST", help="what to profile (native,proxima)")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where timelines and page go")
    parser.add_argument("--tool", choices=(TORCH, NSYS), default=TORCH, help="profiler (default: torch)")
    parser.add_argument("--duration-s", type=float, default=3.0, metavar="S", help="how long, at most 60 (3)")
    parser.add_argument("--after-s", type=float, default=15.0, metavar="S", help="how long after the load began (15)")
    parser.add_argument("--model", metavar="MODEL", help="what the arms serve (default: as proxima serve)")
    parser.add_argument("--full", action="store_true", help="the whole preset, also where it was cut to suit a CPU")
    parser.add_argument("--lang", choices=("en", "zh"), default="en", help="language of the page (default: en)")
    load_flags.add_arguments(parser)
    parser.set_defaults(preset="pressure")
    parser.add_argument("--json", action="store_true", help="print what was captured as JSON")
    parser.add_argument("engine_flags", nargs="*", metavar="-- FLAGS", help=argparse.SUPPRESS)


def _run(options: argparse.Namespace) -> int:
    import uvloop
    from rich.console import Console

    from proxima_bench import profile_run

    plan = _plan(options)
    try:
        files = uvloop.run(profile_run.profile(plan, Console(stderr=True)))
    except asyncio.CancelledError:
        return _TERMINATED
    result = _result(plan, files)
    _write(plan.folder / "profile.json", json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    made = [str(path) for each in files.values() for path in each]
    if result["captures"]:
        from proxima_bench.html import profile_page

        _write(plan.folder / "profile.html", profile_page.page(result, options.lang))
        made.append(str(plan.folder / "profile.html"))
    sys.stdout.write(json.dumps(result, ensure_ascii=False) + "\n" if options.json else "\n".join(made) + "\n")
    sys.stdout.flush()
    return 0


def _plan(options: argparse.Namespace) -> ProfilePlan:
    from proxima_bench import arms, load_flags, loads
    from proxima_bench.arms import VLLM
    from proxima_bench.profile_run import ProfilePlan
    from proxima_config import hardware
    from proxima_config.settings import ProximaSettings

    profiled, base = arms.parse(options.arms, fewest=1), load_flags.base_of(options)
    for arm in profiled:
        if arm.url or arm.kind == VLLM:
            raise UsageError(f"--arms: {arm.name} cannot be profiled; these can: native, proxima, gang")
    if not 0 < options.duration_s <= _MOST_S:
        raise UsageError(f"--duration-s must be above 0 and at most {_MOST_S:g}, not {options.duration_s:g}")
    if options.after_s < 0:
        raise UsageError(f"--after-s must be at least 0, not {options.after_s:g}")
    cut = bool(base.compare.cpu) and not (hardware.detect().has_gpu or options.full)
    load = load_flags.load_from(options, loads.for_cpu(base) if cut else base)
    if load.relative_to_saturation:
        raise UsageError(f"{load.preset} is relative to what a server sustains: give --rate")
    return ProfilePlan(
        arms=profiled,
        load=load,
        model=options.model or ProximaSettings().model,
        engine_flags=tuple(options.engine_flags),
        folder=options.out.resolve(),
        tool=options.tool,
        after_s=options.after_s,
        duration_s=options.duration_s,
    )


def _result(plan: ProfilePlan, files: dict[str, list[Path]]) -> dict[str, Any]:
    from proxima_bench import machine, trace
    from proxima_bench.profile_run import TORCH

    captures = {}
    if plan.tool == TORCH:
        captures = {arm: trace.read(_first_rank(arm, each)).as_json() for arm, each in files.items()}
    return {
        "machine": machine.describe(),
        "load": {**plan.load.model_dump(mode="json", exclude={"compare"}), "arrivals": plan.load.shape.describe()},
        "tool": plan.tool,
        "after_s": plan.after_s,
        "files": {arm: [str(path) for path in each] for arm, each in files.items()},
        "captures": captures,
    }


def _first_rank(arm: str, files: list[Path]) -> Path:
    """Every rank writes a timeline; they show the same steps."""
    found = [path for path in files if ".trace.json" in path.name]
    if not found:
        raise ProximaError(f"{arm}: no timeline among {', '.join(path.name for path in files)}")
    return found[0]


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ProximaError(f"{path}: cannot be written ({error.strerror})") from error


ACTION = Command(
    summary="Capture some seconds of each arm's engine under a load, as timelines and as one page.",
    examples=_EXAMPLES,
    configure=_configure,
    run=_run,
)
