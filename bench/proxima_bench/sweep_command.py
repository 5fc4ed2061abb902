"""`proxima bench sweep`: arms under growing load."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxima_config.command import Command
from proxima_config.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from proxima_bench.sweep import Sweep

_EXAMPLES = """\
  proxima bench sweep --arms native,proxima --preset overload --out sweep.json
  proxima bench sweep --arms url:mine=http://127.0.0.1:8000 --rates 2,4,6,8 --requests 200 --lengths natural
  proxima bench report sweep.json --out sweep.html

Measures what the first arm sustains in a closed loop, then every arm at multiples of that, then more rates for each arm
around the one at which its attainment falls below --target. With --out it writes the file after each measurement, and
the same command goes on where it was stopped.
exit code: 0 measured; 1 an arm did not start, did not answer or ignored the lengths asked for; 2 wrong usage.
"""
_MULTIPLES = "0.4,0.6,0.8,0.9,1,1.2"
_TERMINATED = 143


def _configure(parser: argparse.ArgumentParser) -> None:
    from proxima_bench import load_flags

    parser.usage = "%(prog)s [--arms LIST] [flags] [-- flags of every arm]"
    parser.add_argument("--arms", default="native,proxima", metavar="LIST", help="what to measure (native,proxima)")
    rates = parser.add_mutually_exclusive_group()
    rates.add_argument("--rates", type=_numbers, default=(), metavar="LIST", help="rates to offer, requests a second")
    rates.add_argument(
        "--multiples", type=_numbers, default=_numbers(_MULTIPLES), metavar="LIST",
        help=f"rates as multiples of the closed loop's (default: {_MULTIPLES})",
    )  # fmt: skip
    parser.add_argument("--bisect", type=int, default=2, metavar="N", help="further rates for each arm (default: 2)")
    parser.add_argument("--target", type=float, default=0.9, metavar="SHARE", help="attainment of capacity (0.9)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the result; an unfinished one is gone on with")
    parser.add_argument("--model", metavar="MODEL", help="what the arms serve (default: as proxima serve)")
    parser.add_argument(
        "--restart", action=argparse.BooleanOptionalAction, help="one arm at a time instead of all side by side"
    )
    parser.add_argument("--full", action="store_true", help="the whole preset, also where it was cut to suit a CPU")
    parser.add_argument("--api-key", help="sent as bearer token (default: OPENAI_API_KEY)")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="where the arms' logs go (default: a new folder)")
    load_flags.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("engine_flags", nargs="*", metavar="-- FLAGS", help=argparse.SUPPRESS)


def _run(options: argparse.Namespace) -> int:
    import uvloop
    from rich.console import Console

    try:
        found = uvloop.run(_sweep(options, Console(stderr=True)))
    except asyncio.CancelledError:
        return _TERMINATED
    if options.json:
        sys.stdout.write(json.dumps(found.as_json(), indent=2, ensure_ascii=False) + "\n")
        sys.stdout.flush()
    else:
        _show(found, Console())
    return 0


async def _sweep(options: argparse.Namespace, console: Console) -> Sweep:
    from proxima_bench import compare_run, comparison, live, measurement, sweep
    from proxima_bench.arms import Arm
    from proxima_bench.comparison import Case, Turn
    from proxima_bench.loads import Load
    from proxima_bench.target import Target

    compare_run.cancel_on_sigterm()
    found = sweep.Sweep.begin(_plan(options), options.out)
    if sweep.complete(found):
        return found
    plan, urls = found.plan, dict[str, str]()
    logs = compare_run.log_folder(options.logs) if any(not arm.url for arm in plan.arms) else Path()
    start = compare_run.starter(plan.model, plan.load, options.engine_flags, logs, console)

    async def measure(arm: Arm, load: Load, title: str) -> Any:
        turn = Turn(arm, Case("", load), 1)
        target = Target(urls[arm.name], api_key=plan.api_key)
        async with measurement.session(target, load, warn=partial(comparison.refuse, turn)) as session:
            measured = await session.measure(partial(live.watching, console=console, title=title))
        comparison.check(turn, measured.report)
        report = measured.report
        compare_run.say(console, f"{title}: {report['qps']:.2f}/s completed, attainment {report['attainment']:.2f}")
        return report

    servers = comparison.one_at_a_time if plan.restart else comparison.side_by_side
    async with servers(plan.arms, start) as running:

        @asynccontextmanager
        async def reach(arm: Arm) -> AsyncIterator[None]:
            async with running(arm) as urls[arm.name]:
                yield

        await sweep.sweep(found, reach, measure)
    return found


def _plan(options: argparse.Namespace) -> Any:
    from proxima_bench import arms, load_flags, loads
    from proxima_bench.arms import VLLM
    from proxima_bench.sweep import SweepPlan
    from proxima_config import hardware
    from proxima_config.settings import ProximaSettings

    compared, base = arms.parse(options.arms, fewest=1), load_flags.base_of(options)
    started, has_gpu = [arm for arm in compared if not arm.url], hardware.detect().has_gpu
    cut = bool(started and base.compare.cpu) and not (has_gpu or options.full)
    if options.bisect < 0:
        raise UsageError(f"--bisect must be at least 0, not {options.bisect}")
    if not 0 < options.target <= 1:
        raise UsageError(f"--target must be above 0 and at most 1, not {options.target:g}")
    alone = len(started) > 1 and (has_gpu or any(arm.kind == VLLM for arm in started))
    return SweepPlan(
        arms=compared,
        load=load_flags.load_from(options, loads.for_cpu(base) if cut else base),
        model=options.model or ProximaSettings().model,
        engine_flags=tuple(options.engine_flags),
        multiples=options.multiples,
        rates=options.rates,
        bisections=options.bisect,
        target=options.target,
        restart=alone if options.restart is None else options.restart,
        api_key=options.api_key or os.environ.get("OPENAI_API_KEY"),
    )


def _show(found: Sweep, console: Console) -> None:
    from rich.table import Table

    table = Table(
        "offered/s", *(f"{arm.name} {what}" for arm in found.plan.arms for what in ("attained", "completed/s"))
    )
    points = {arm.name: {point.rate_rps: point for point in found.points(arm)} for arm in found.plan.arms}
    for rate in sorted({rate for each in points.values() for rate in each}):
        cells = []
        for arm in found.plan.arms:
            point = points[arm.name].get(rate)
            cells += [f"{point.attainment:.1%}", f"{point.qps:.2f}"] if point else ["", ""]
        table.add_row(f"{rate:.3g}", *cells)
    console.print(table, highlight=False)
    described = found.as_json()
    for name, each in described["sweep"]["arms"].items():
        console.print(f"{name}: {_sentence(each, found.plan.target)}", highlight=False, soft_wrap=True)
    for warning in described["warnings"]:
        console.print(f"warning: {warning}", style="yellow", highlight=False, soft_wrap=True)


def _sentence(found: dict[str, Any], target: float) -> str:
    if found["capacity_rps"] is None:
        capacity = f"{target:.0%} attained at none of these rates"
    else:
        bound = "at least " if found["capacity_is_bound"] else ""
        capacity = f"{target:.0%} attained up to {bound}{found['capacity_rps']:.2f}/s"
    knee = "at none" if found["knee_rps"] is None else f"up to {found['knee_rps']:.2f}/s"
    return f"{capacity}, throughput follows {knee}, peak {found['peak_rps']:.2f}/s"


def _numbers(text: str) -> tuple[float, ...]:
    numbers = tuple(float(part) for part in text.split(","))
    if any(number <= 0 for number in numbers) or list(numbers) != sorted(set(numbers)):
        raise argparse.ArgumentTypeError(f"{text} must be growing numbers above 0, such as {_MULTIPLES}")
    return numbers


ACTION = Command(
    summary="Measure servers under growing load: capacity at the target, knee and peak.",
    examples=_EXAMPLES,
    configure=_configure,
    run=_run,
)
