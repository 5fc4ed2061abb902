"""`proxima lab`: the real scheduler in virtual time."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from proxima_config.command import Command
from proxima_config.errors import UsageError
from proxima_config.settings import SchedulerSettings
from proxima_engine.lab import arm_names

_EXAMPLES = """\
  proxima lab compare --rate-scale 1.5 --blocks 1500 --profile h100-llama2-7b --arms native,proxima,deadline-watermark
  proxima lab compare --trace mine.csv --limit 2000 --blocks 3000 --slo ttft=2,stall=0.2 --json
  proxima lab run --arm proxima --generate "giant-head" --blocks 400
  proxima lab sweep --loads 0.5,0.75,1,1.25,1.5 --arms native,proxima --plot curves.svg
  proxima lab calibrate --steps steps.jsonl --name my-machine --output my-machine.yaml

Without --trace or --generate the lab takes a shipped cut of Azure's chat trace of 2023. Schedulers see the declared cap
of each answer (--max-tokens), never its true length; arms that do are marked. The same seed gives the same figures.
"""

_LOADS = "0.5,0.75,1,1.25,1.5"


def _configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    words: tuple[
        tuple[str, str, Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int]], ...
    ] = (
        ("run", "Run one arm under one workload.", _configure_run, _run),
        ("compare", "Run several arms under the same workload.", _configure_compare, _compare),
        ("sweep", "Run several arms at growing load.", _configure_sweep, _sweep),
        ("calibrate", "Fit the cost of steps to a real engine's log.", _configure_calibrate, _calibrate),
    )
    for name, summary, configure, run in words:
        word = actions.add_parser(
            name,
            help=summary,
            description=summary,
            epilog=f"examples:\n{_EXAMPLES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        configure(word)
        add_setting(word)
        word.set_defaults(action=run)


def _configure_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--arm", default="proxima", metavar="NAME", help="scheduler to run (default: proxima)")


def _configure_compare(parser: argparse.ArgumentParser) -> None:
    default = "native,proxima"
    parser.add_argument("--arms", default=default, metavar="LIST", help=f"schedulers, or all (default: {default})")


def _configure_sweep(parser: argparse.ArgumentParser) -> None:
    _configure_compare(parser)
    parser.add_argument("--loads", default=_LOADS, metavar="LIST", help=f"multiples of the rate (default: {_LOADS})")
    parser.add_argument(
        "--bisect",
        type=int,
        default=0,
        metavar="N",
        help="loads to try on top for each arm, to close in on where it attains 90 %% (default: 0)",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the curves: .svg, .png or .pdf")


def _configure_calibrate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--steps", type=Path, required=True, metavar="FILE", help="log of an engine started with --step-log FILE"
    )
    parser.add_argument("--name", default="calibrated", metavar="NAME", help="name of the profile")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the profile there, for --profile FILE")
    parser.add_argument(
        "--check",
        action="append",
        default=[],
        metavar="REPORT:REQUESTS",
        help="a run of `bench serve --json --log-requests` to predict with it; may be repeated",
    )
    parser.add_argument("--arm", default="native", metavar="NAME", help="scheduler of the checked runs (native)")


def add_setting(parser: argparse.ArgumentParser) -> None:
    """What is the same for all arms: traffic, machine and targets."""
    traffic = parser.add_argument_group("traffic")
    source = traffic.add_mutually_exclusive_group()
    source.add_argument("--trace", type=Path, metavar="FILE", help="CSV: arrival_s,input_tokens,output_tokens,...")
    source.add_argument("--generate", metavar="SPEC", help="such as poisson:rate=4,requests=500,input=32-512")
    traffic.add_argument("--skip", type=int, default=0, metavar="N", help="leave out the first requests of a trace")
    traffic.add_argument("--limit", type=int, metavar="N", help="only the first requests of a trace, after those")
    for flag, text in (
        ("--rate-scale", "multiplies the trace's arrival rate"),
        ("--input-scale", "multiplies the prompts' tokens"),
        ("--output-scale", "multiplies the answers' tokens"),
    ):
        traffic.add_argument(flag, type=float, default=1.0, metavar="X", help=text)
    traffic.add_argument("--jitter-s", type=float, default=0.0, metavar="S", help="tick of the trace, to spread out")
    traffic.add_argument("--max-tokens", type=int, metavar="N", help="declared by all requests (default: 1024)")
    traffic.add_argument("--seed", type=int, default=0, metavar="N", help="fixes all that is drawn (default: 0)")
    machine = parser.add_argument_group("machine")
    machine.add_argument("--profile", default="h100-llama2-7b", metavar="NAME", help="cost of steps, or a .yaml file")
    machine.add_argument("--blocks", type=int, default=1500, metavar="N", help="usable KV blocks (default: 1500)")
    machine.add_argument("--block-size", type=int, default=16, metavar="N", help="tokens of a block (default: 16)")
    machine.add_argument("--max-num-seqs", type=int, metavar="N", help="requests in a batch (default: the profile's)")
    machine.add_argument("--max-num-batched-tokens", type=int, metavar="N", help="tokens in a step, likewise")
    machine.add_argument(
        "--async-scheduling", action=argparse.BooleanOptionalAction, help="plan a step while another runs, likewise"
    )
    machine.add_argument("--no-prefix-caching", action="store_true", help="prompts share no blocks")
    parser.add_argument("--slo", default="ttft=2,stall=0.2", metavar="TARGETS", help="in seconds (ttft=2,stall=0.2)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="simulations at once (default: 1)")
    parser.add_argument(
        "--max-wait-s",
        type=_seconds,
        default=SchedulerSettings().max_wait_s,
        metavar="S",
        help="age bound of the arm proxima (default: %(default)g)",
    )
    parser.add_argument("--timeline", action="store_true", help="each request in the JSON, for `proxima bench report`")
    parser.add_argument("--time-scheduler", action="store_true", help="report the real time a step's scheduling takes")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def _run(options: argparse.Namespace) -> int:
    arm_names.check("--arm", options.arm)
    return _compare_named((options.arm,), options)


def _compare(options: argparse.Namespace) -> int:
    return _compare_named(arm_names.parse("--arms", options.arms), options)


def _compare_named(names: tuple[str, ...], options: argparse.Namespace) -> int:
    # Before vLLM is imported, which takes a quarter of a minute on a small machine.
    setting = setting_of(options)

    from proxima_engine.lab import experiment, report
    from proxima_engine.lab.arms import ARMS

    arms = [ARMS[name] for name in names]
    _print(options, experiment.compare(arms, setting, options.jobs, _progress()), report.show)
    return 0


def _sweep(options: argparse.Namespace) -> int:
    from proxima_engine.lab import plot

    names = arm_names.parse("--arms", options.arms)
    setting, loads = setting_of(options), _numbers("--loads", options.loads)
    if options.bisect < 0:
        raise UsageError(f"--bisect must be at least 0, not {options.bisect}")
    if options.plot is not None:
        plot.check(options.plot)

    from proxima_engine.lab import experiment, report
    from proxima_engine.lab.arms import ARMS

    arms = [ARMS[name] for name in names]
    found = experiment.sweep(arms, setting, loads, options.jobs, _progress(), options.bisect)
    if options.plot is not None:
        plot.draw(found, options.plot)
    _print(options, found, report.show_sweep)
    return 0


def _calibrate(options: argparse.Namespace) -> int:
    arm_names.check("--arm", options.arm)

    from proxima_engine.lab import calibrate

    found = calibrate.calibrate(calibrate.read(options.steps))

    from proxima_engine.lab import calibration_report, check
    from proxima_engine.lab.arms import ARMS
    from proxima_engine.lab.profiles import Profile

    limits = _limits(options)
    predictions = {}
    for text in options.check:
        measured = check.read(text)
        setting = _setting_for(options, measured.workload, Profile(options.name, found.cost, limits))
        predictions[measured.name] = check.predict(measured, ARMS[options.arm], setting)
    values = calibration_report.as_json(found, options.name, limits, predictions)
    if options.output is not None:
        calibration_report.write_profile(values["profile"], options.output)
    _print(options, values, calibration_report.show)
    return 0


def setting_of(options: argparse.Namespace) -> Any:
    """The `Setting` that flags of `add_setting` describe. Raises UsageError."""
    from proxima_engine.lab.profiles import profile

    chosen = profile(options.profile)
    return _setting_for(options, _workload(options), replace(chosen, limits=_changed(options, chosen.limits)))


def _setting_for(options: argparse.Namespace, workload: Any, profile: Any) -> Any:
    from proxima_engine.lab.setting import Setting

    _at_least_1(options, "blocks", "block_size", "jobs")
    return Setting(
        workload=workload,
        profile=profile,
        blocks=options.blocks,
        block_size=options.block_size,
        slo=_slo(options.slo),
        max_wait_s=options.max_wait_s,
        seed=options.seed,
        prefix_caching=not options.no_prefix_caching,
        with_wall_time=options.time_scheduler,
        with_timeline=options.timeline,
    )


def _limits(options: argparse.Namespace) -> Any:
    """Those of a machine that is being calibrated: vLLM's on a CPU, unless told otherwise."""
    from proxima_engine.lab.profiles import Limits

    return _changed(options, Limits(max_num_batched_tokens=2048, max_num_seqs=128, async_scheduling=False))


def _changed(options: argparse.Namespace, limits: Any) -> Any:
    _at_least_1(options, "max_num_seqs", "max_num_batched_tokens")
    given = {name: getattr(options, name) for name in ("max_num_batched_tokens", "max_num_seqs", "async_scheduling")}
    return replace(limits, **{name: value for name, value in given.items() if value is not None})


def _at_least_1(options: argparse.Namespace, *names: str) -> None:
    for name in names:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1, not {value}")


def _workload(options: argparse.Namespace) -> Any:
    from proxima_config.traces import AZURE_CUT
    from proxima_engine.lab import generators, traces
    from proxima_engine.lab.requests import DEFAULT_CAP_TOKENS

    if options.generate is not None:
        return generators.parse(
            options.generate,
            seed=options.seed,
            cap_tokens=options.max_tokens,
            pool_tokens=options.blocks * options.block_size,
        )
    changes = traces.Changes(
        skip=options.skip,
        limit=options.limit,
        rate_scale=options.rate_scale,
        input_scale=options.input_scale,
        output_scale=options.output_scale,
        jitter_s=options.jitter_s,
        cap_tokens=DEFAULT_CAP_TOKENS if options.max_tokens is None else options.max_tokens,
        seed=options.seed,
    )
    return traces.read(options.trace or Path(AZURE_CUT), changes)


def _slo(text: str) -> Any:
    from proxima_config.slo import SLO

    try:
        targets = {name: float(value) for name, value in (part.split("=") for part in text.split(","))}
        return SLO(ttft_s=targets.pop("ttft"), stall_s=targets.pop("stall"), **targets)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"--slo must look like ttft=2,stall=0.2 with seconds above 0, not {text}") from error


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 <= number < math.inf:
        raise ValueError(text)
    return number


def _numbers(flag: str, text: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or any(number <= 0 for number in numbers) or numbers != sorted(set(numbers)):
        raise UsageError(f"{flag} must be growing numbers above 0, such as {_LOADS}, not {text}")
    return numbers


def _progress() -> Callable[[str], None]:
    from rich.console import Console

    return partial(Console(stderr=True).print, highlight=False, soft_wrap=True)


def _print(options: argparse.Namespace, found: dict[str, Any], show: Callable[[dict[str, Any], Any], None]) -> None:
    from rich.console import Console

    if options.json:
        sys.stdout.write(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
        sys.stdout.flush()
    else:
        show(found, Console())


def _dispatch(options: argparse.Namespace) -> int:
    # vLLM reads these when it is imported. Its log would stand in the middle of the report, on standard output.
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    action: Callable[[argparse.Namespace], int] = options.action
    return action(options)


COMMAND = Command(
    summary="Try schedulers on recorded or made-up traffic in virtual time, with vLLM's own scheduler.",
    examples=_EXAMPLES,
    configure=_configure,
    run=_dispatch,
)
