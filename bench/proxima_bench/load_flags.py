"""The load on the command line: a preset, and flags that change parts of it. Shared by all actions of `bench`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from proxima_bench import loads
from proxima_bench.loads import Api, Lengths, Load
from proxima_config.errors import UsageError

_PREFIX = "load."
_SIMPLE = (
    ("--requests", "requests", int, "N", "conversations to send"),
    ("--warmup", "warmup", int, "N", "conversations sent before the measurement begins; in no figure"),
    ("--cap-tokens", "cap_tokens", int, "N", "max_tokens that each request declares (default: 1024)"),
    ("--temperature", "temperature", float, "T", "sampling temperature (default: the server's)"),
    ("--timeout-s", "timeout_s", float, "S", "time limit of each request (default: 600)"),
    ("--cancel-share", "cancel_share", float, "SHARE", "share of requests whose client leaves early (0 to 1)"),
    ("--cancel-after-s", "cancel_after_s", float, "S", "when those clients leave, after sending (default: 2)"),
    ("--slo-ttft-s", "slo_ttft_s", float, "S", "target of the time to the first token"),
    ("--slo-stall-s", "slo_stall_s", float, "S", "target of the longest gap between two tokens"),
    ("--seed", "seed", int, "N", "fixes prompts, lengths, arrivals and who leaves (default: 0)"),
)
_SYNTHETIC = (
    ("--input-tokens", "input_tokens", str, "COUNT", "tokens of each message: 128, 32-512, 64|512, lognormal(64, 1)"),
    ("--output-tokens", "output_tokens", str, "COUNT", "tokens of each answer, written alike"),
    ("--prefix-tokens", "prefix_tokens", int, "N", "tokens of a beginning that requests share"),
    ("--prefixes", "prefixes", int, "N", "how many such beginnings there are (default: 1)"),
    ("--turns", "turns", int, "N", "turns of each conversation, each sent with all answers before it"),
)
_TRACE = (
    ("--input-scale", "input_scale", float, "X", "multiplies the input tokens of a trace"),
    ("--output-scale", "output_scale", float, "X", "multiplies the output tokens of a trace"),
)
_FILES = (
    ("--trace", "csv", "CSV with arrival_s, input_tokens, output_tokens"),
    ("--sharegpt", "sharegpt", "JSON file in ShareGPT's format"),
    ("--jsonl", "jsonl", "one object a line: prompt or messages, and optionally output_tokens, arrival_s"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(loads.presets())
    parser.add_argument("--preset", metavar="NAME", help=f"start from a shipped load: {names}")
    _add_arrivals(parser.add_argument_group("arrivals"))
    _add_prompts(parser.add_argument_group("prompts"))
    group = parser.add_argument_group("requests")
    _add(group, _SIMPLE)
    group.add_argument("--api", type=Api, choices=list(Api), dest=f"{_PREFIX}api", help="endpoint (default: chat)")
    group.add_argument(
        "--lengths",
        type=Lengths,
        choices=list(Lengths),
        dest=f"{_PREFIX}lengths",
        help="what ends an answer: a logits processor at a length no scheduler knows (forced, the default), max_tokens "
        "itself (cap), or the model (natural)",
    )
    group.add_argument("--no-stream", action="store_true", help="ask for answers in one piece")
    group.add_argument("--extra-body", type=_object, metavar="JSON", help="further fields of each request")


def load_from(options: argparse.Namespace, base: Load | None = None) -> Load:
    """The load that the options describe, as changes of ``base`` or of the preset they name.

    Raises ConfigError or UsageError that says what is wrong.
    """
    base = base or base_of(options)
    values = base.model_dump()
    given = {name.removeprefix(_PREFIX): value for name, value in vars(options).items() if name.startswith(_PREFIX)}
    values |= {name: value for name, value in given.items() if value is not None}
    if given["requests"] is not None:
        values["arrivals_s"] = None
    if options.no_stream:
        values["stream"] = False
    if options.extra_body is not None:
        values["extra_body"] = {**base.extra_body, **options.extra_body}
    values["shape"] = _shape(options, values["shape"])
    values["prompts"] = _prompts(options, values["prompts"])
    return loads.build(values)


def base_of(options: argparse.Namespace) -> Load:
    return loads.preset(options.preset) if options.preset else Load()


def _add_arrivals(group: argparse._ArgumentGroup) -> None:
    one = group.add_mutually_exclusive_group()
    one.add_argument("--concurrency", type=int, metavar="N", help="closed loop: always N in flight (default: 16)")
    one.add_argument("--poisson", type=float, metavar="RATE", help="open loop: independent arrivals, RATE a second")
    one.add_argument("--gamma", type=float, metavar="RATE", help="open loop: arrivals in bursts, RATE a second")
    one.add_argument("--constant", type=float, metavar="RATE", help="open loop: equal gaps, RATE a second")
    one.add_argument("--ramp", metavar="FROM:TO:S", help="open loop: from FROM to TO a second within S seconds")
    one.add_argument("--replay", action="store_true", help="open loop: the arrival times of the trace")
    group.add_argument("--burstiness", type=float, metavar="K", help="of --gamma: below 1 bursts, 1 Poisson (0.25)")
    group.add_argument("--rate-scale", type=float, metavar="X", help="of a replay: X times faster than recorded")
    group.add_argument("--rate", type=float, metavar="RATE", help="of a replay: the mean arrivals a second")


def _add_prompts(group: argparse._ArgumentGroup) -> None:
    one = group.add_mutually_exclusive_group()
    one.add_argument("--prompt", metavar="TEXT", help="the same prompt for all")
    for flag, kind, text in _FILES:
        one.add_argument(flag, type=Path, metavar="FILE", dest=f"file.{kind}", help=text)
    for flags in (_SYNTHETIC, _TRACE):
        _add(group, flags, prefix="prompts.")


def _add(group: argparse._ArgumentGroup, flags: tuple[Any, ...], prefix: str = _PREFIX) -> None:
    for flag, name, kind, metavar, text in flags:
        group.add_argument(flag, dest=f"{prefix}{name}", type=kind, metavar=metavar, help=text)


def _shape(options: argparse.Namespace, base: dict[str, Any]) -> dict[str, Any]:
    shape = _new_shape(options) or base
    for name, key, kind in (
        ("burstiness", "burstiness", "gamma"),
        ("rate_scale", "rate_scale", "trace"),
        ("rate", "rate_rps", "trace"),
    ):
        value = getattr(options, name)
        if value is None:
            continue
        if shape["kind"] != kind:
            other = "--gamma" if kind == "gamma" else "--replay"
            raise UsageError(f"--{name.replace('_', '-')} goes with {other}")
        shape = {**shape, key: value}
    return shape


def _new_shape(options: argparse.Namespace) -> dict[str, Any] | None:
    if options.concurrency is not None:
        return {"kind": "closed", "concurrency": options.concurrency}
    for kind in ("poisson", "gamma", "constant"):
        if (rate := getattr(options, kind)) is not None:
            return {"kind": kind, "rate_rps": rate}
    if options.ramp is not None:
        return _ramp(options.ramp)
    return {"kind": "trace"} if options.replay else None


def _ramp(text: str) -> dict[str, Any]:
    try:
        start, end, over = (float(part) for part in text.split(":"))
    except ValueError as error:
        raise UsageError(f"--ramp must look like FROM:TO:SECONDS, such as 1:20:60, not {text}") from error
    return {"kind": "ramp", "from_rps": start, "to_rps": end, "over_s": over}


def _prompts(options: argparse.Namespace, base: dict[str, Any]) -> dict[str, Any]:
    prompts = base
    if options.prompt is not None:
        prompts = {"kind": "text", "text": options.prompt}
    for _, kind, _ in _FILES:
        if (path := getattr(options, f"file.{kind}")) is not None:
            prompts = {"kind": kind, "path": path}
    changes = {
        name.removeprefix("prompts."): value
        for name, value in vars(options).items()
        if name.startswith("prompts.") and value is not None
    }
    if prompts is base and base["kind"] != "synthetic" and not changes.keys() <= base.keys():
        prompts = {"kind": "synthetic"}
    return {**prompts, **changes}


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text} is not a JSON object")
    return value
