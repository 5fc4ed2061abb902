"""From the command line to a finished comparison: what to compare, where servers run, what is shown meanwhile."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from rich.console import Console

from proxima_bench import arms, comparison, live, load_flags, loads, servers
from proxima_bench.arms import VLLM, Arm
from proxima_bench.comparison import Comparison, Plan, Start, Turn
from proxima_bench.loads import Load
from proxima_bench.measurement import Measurement, Watch
from proxima_config import hardware
from proxima_config.errors import ProximaError, UsageError
from proxima_config.settings import ProximaSettings


async def run(options: argparse.Namespace, console: Console) -> Comparison:
    """Raises UsageError for options that contradict each other, ProximaError for arms that fail.

    SIGTERM cancels it, so that the arms it started do not outlive it.
    """
    cancel_on_sigterm()
    plan = plan_from(options, has_gpu=hardware.detect().has_gpu)
    if plan.cut:
        say(console, f"{plan.load.preset} is cut to suit a machine without a GPU; --full takes the whole")
    logs = log_folder(options.logs) if any(not arm.url for arm in plan.arms) else Path()
    start = starter(options.model or ProximaSettings().model, plan.load, options.engine_flags, logs, console)
    return await comparison.compare(plan, start, partial(_watch, plan, console), partial(_ended, plan, console))


def cancel_on_sigterm() -> None:
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


def plan_from(options: argparse.Namespace, *, has_gpu: bool) -> Plan:
    base = load_flags.base_of(options)
    compared = arms.parse(base.compare.arms if options.arms is None else options.arms)
    started = [arm for arm in compared if not arm.url]
    # What machine other servers run on is not known here, and they may be fast.
    cut = bool(started and base.compare.cpu) and not (has_gpu or options.full)
    load = load_flags.load_from(options, loads.for_cpu(base) if cut else base)
    rounds = base.compare.rounds if options.rounds is None else options.rounds
    if rounds < 1:
        raise UsageError(f"--rounds must be at least 1, not {rounds}")
    for flag, given in (("flags after --", options.engine_flags), ("--restart", options.restart is not None)):
        if given and not started:
            raise UsageError(f"{flag}: for arms that are started, and there are only url: arms")
    alone = len(started) > 1 and (has_gpu or any(arm.kind == VLLM for arm in started))
    return Plan(
        arms=compared,
        load=load,
        cut=cut,
        rounds=rounds,
        restart=alone if options.restart is None else options.restart,
        api_key=options.api_key or os.environ.get("OPENAI_API_KEY"),
    )


def log_folder(wanted: Path | None) -> Path:
    if wanted is None:
        return Path(tempfile.mkdtemp(prefix="proxima-compare-"))
    try:
        wanted.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ProximaError(f"--logs: {wanted} cannot be made ({error.strerror})") from error
    return wanted


def starter(model: str, load: Load, extra: Sequence[str], logs: Path, console: Console) -> Start:
    @asynccontextmanager
    async def start(arm: Arm) -> AsyncIterator[str]:
        if arm.url:
            yield arm.url
            return
        log = logs / f"{file_name(arm)}.log"
        say(console, f"starting {arm.name}; its log is {log}")
        async with servers.running(arm, model, load, extra, log) as url:
            yield url

    return start


def file_name(arm: Arm) -> str:
    """The arm's name as far as it can stand in the name of a file."""
    return "".join(each if each.isalnum() or each in "-_." else "_" for each in arm.name)


def _watch(plan: Plan, console: Console, turn: Turn) -> Watch:
    return partial(live.watching, console=console, title=_title(plan, turn))


def _ended(plan: Plan, console: Console, turn: Turn, measured: Measurement) -> None:
    report = measured.report
    requests = report["requests"]
    say(
        console,
        f"{_title(plan, turn)}: {requests['completed']} of {requests['offered']} in {report['duration_s']:.0f} s, "
        f"{report['output_tokens_per_s']:.1f} tokens/s, attainment {report['attainment']:.2f}",
    )


def _title(plan: Plan, turn: Turn) -> str:
    number = f"round {turn.round} of {plan.rounds}" if turn.round else ""
    return " ".join(part for part in (number, turn.arm.name, turn.case.name) if part)


def say(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)
