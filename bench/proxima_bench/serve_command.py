"""`proxima bench serve`: one load against one server."""

from __future__ import annotations

import argparse
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from proxima_config.command import Command
from proxima_config.errors import ProximaError, UsageError

_EXAMPLES = """\
  proxima bench serve --url http://127.0.0.1:8000 --preset throughput
  proxima bench serve --url http://127.0.0.1:8000 --requests 500 --poisson 8 --input-tokens 32-512 --output-tokens 128
  proxima bench serve --url http://127.0.0.1:8000 --trace mine.csv --replay --rate-scale 2 --log-requests all.jsonl
  proxima bench serve --url http://127.0.0.1:8000 --concurrency 2000 --requests 4000 --output-tokens 64
  proxima bench serve --url https://api.example.com/v1 --lengths natural --prompt "Why is the sky blue?"
  proxima bench serve --url http://127.0.0.1:8000 --preset article --json --max-error-rate 0 --min-attainment 0.9

exit code: 0 good; 1 failed, or worse than --max-error-rate or --min-attainment allow; 2 wrong usage.
Lengths are forced only where the server was started with --logits-processors proxima_engine.forced_length:ForcedLength.
"""


def _configure(parser: argparse.ArgumentParser) -> None:
    from proxima_bench import load_flags

    parser.usage = "%(prog)s --url URL [flags]"
    parser.add_argument("--url", required=True, help="base URL of the server, with or without /v1")
    parser.add_argument("--model", help="model to name in requests (default: the first that the server lists)")
    parser.add_argument("--api-key", help="sent as bearer token (default: OPENAI_API_KEY)")
    parser.add_argument(
        "--metrics-url",
        action="append",
        metavar="URL",
        help="Prometheus page to read besides; may be repeated (default: /metrics of the server)",
    )
    load_flags.add_arguments(parser)
    output = parser.add_argument_group("report")
    output.add_argument("--json", action="store_true", help="print the report as JSON")
    output.add_argument("--log-requests", type=Path, metavar="FILE", help="write one JSON object a request")
    output.add_argument("--max-error-rate", type=_share, metavar="SHARE", help="exit 1 if more requests fail (0 to 1)")
    output.add_argument("--min-attainment", type=_share, metavar="SHARE", help="exit 1 if fewer attain (0 to 1)")


def _run(options: argparse.Namespace) -> int:
    import uvloop
    from rich.console import Console

    from proxima_bench import load_flags, report

    load = load_flags.load_from(options)
    if load.relative_to_saturation:
        multiples = ", ".join(f"{multiple:g}" for multiple in load.saturation_multiples)
        raise UsageError(
            f"{load.preset} is relative to what the server sustains: give --rate, such as {multiples} times the "
            "requests/s it reaches in a closed loop"
        )
    measurement = uvloop.run(_measure(options, load))
    if options.log_requests is not None:
        _write_rows(options.log_requests, measurement.rows)
    if options.json:
        sys.stdout.write(json.dumps(measurement.report, indent=2, ensure_ascii=False) + "\n")
        sys.stdout.flush()
    else:
        report.show(measurement.report, Console())
    return _verdict(options, measurement.report)


async def _measure(options: argparse.Namespace, load: Any) -> Any:
    from rich.console import Console

    from proxima_bench import live, measurement
    from proxima_bench.target import Target, root_of

    api_key = options.api_key or os.environ.get("OPENAI_API_KEY")
    target = Target(root_of(options.url), options.model, api_key)
    console = Console(stderr=True)
    warn = partial(console.print, style="yellow", highlight=False, soft_wrap=True)
    async with measurement.session(target, load, metrics_urls=options.metrics_url or (), warn=warn) as session:
        return await session.measure(partial(live.watching, console=console))


def _write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    try:
        with path.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    except OSError as error:
        raise ProximaError(f"{path}: cannot be written ({error.strerror})") from error


def _verdict(options: argparse.Namespace, report: dict[str, Any]) -> int:
    """Says on standard error why the exit code is not 0."""
    from proxima_bench.figures import error_rate

    reasons = []
    failed, attained = error_rate(report), report["attainment"]
    if failed == 1:
        reasons.append("every request failed")
    elif options.max_error_rate is not None and failed > options.max_error_rate:
        reasons.append(f"error rate {failed:.4g} is above {options.max_error_rate:g}")
    if options.min_attainment is not None and attained < options.min_attainment:
        reasons.append(f"attainment {attained:.4g} is below {options.min_attainment:g}")
    sys.stderr.writelines(f"proxima bench: {reason}\n" for reason in reasons)
    return 1 if reasons else 0


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


ACTION = Command(
    summary="Send one load to a server and report latencies, throughput and attainment.",
    examples=_EXAMPLES,
    configure=_configure,
    run=_run,
)
