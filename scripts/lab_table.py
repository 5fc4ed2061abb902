"""Proxima against vLLM's scheduler and the strongest simple rule in many settings of the lab.

    .venv/bin/python scripts/lab_table.py --traces FOLDER

Writes docs/benchmarks/lab-table.json and lab-table.md. FOLDER holds the whole traces, which are not part of the
repository: azure2023_conv.csv and mooncake_synthetic.csv (docs/benchmarks/README.md says where they come from). Every
line is kept under the flags of `proxima lab compare` that give it. Results that are there already are kept, so that a
run may be stopped and taken up again; --again ARM drops those of an arm, such as proxima after a change of the policy.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "benchmarks"
ARMS = ("native", "deadline-watermark", "proxima")
AZURE = "--trace azure2023_conv.csv --limit 400"
LONG = "--trace azure2023_conv.csv --limit 200 --input-scale 0.5 --output-scale 4 --max-tokens 4096"
MOONCAKE = "--trace mooncake_synthetic.csv --limit 400 --input-scale 0.1"
MADE_UP = "requests=400,input=lognormal(512, 1, 4096),output=lognormal(160, 1, 1024)"

LINES: dict[str, dict[str, str]] = {
    "cut of the trace, as recorded": {
        "from request 0": AZURE,
        "from request 3,000": f"{AZURE} --skip 3000",
        "from request 6,000": f"{AZURE} --skip 6000",
        "from request 9,000": f"{AZURE} --skip 9000",
        "from request 12,000": f"{AZURE} --skip 12000",
    },
    "cut of the trace, 1.5 x": {
        "from request 0, 1.5 x": f"{AZURE} --rate-scale 1.5",
        "from request 3,000, 1.5 x": f"{AZURE} --skip 3000 --rate-scale 1.5",
        "from request 12,000, 1.5 x": f"{AZURE} --skip 12000 --rate-scale 1.5",
    },
    "little load": {
        "from request 0, 0.5 x": f"{AZURE} --rate-scale 0.5",
        "from request 9,000, 0.5 x": f"{AZURE} --skip 9000 --rate-scale 0.5",
    },
    "arrivals moved by up to 5 s": {
        "seed 1, 1.5 x": f"{AZURE} --rate-scale 1.5 --jitter-s 5 --seed 1",
        "seed 2, 1.5 x": f"{AZURE} --rate-scale 1.5 --jitter-s 5 --seed 2",
        "seed 3, 1.5 x": f"{AZURE} --rate-scale 1.5 --jitter-s 5 --seed 3",
    },
    "blocks": {
        "750 blocks, 0.75 x": f"{AZURE} --blocks 750 --rate-scale 0.75",
        "3,000 blocks, 2.5 x": f"{AZURE} --blocks 3000 --rate-scale 2.5",
        "6,000 blocks, 4 x": f"{AZURE} --blocks 6000 --rate-scale 4",
    },
    "machine": {
        "a100-llama2-7b, 1,500 blocks, 1.25 x": f"{AZURE} --profile a100-llama2-7b --rate-scale 1.25",
        "h100-llama3-8b, 3,000 blocks, 2.5 x": f"{AZURE} --profile h100-llama3-8b --blocks 3000 --rate-scale 2.5",
        "l40s-llama3-8b, 3,000 blocks, 1 x": f"{AZURE} --profile l40s-llama3-8b --blocks 3000",
        "h100-llama3-70b-tp4, 3,000 blocks, 1.5 x": f"{AZURE} --profile h100-llama3-70b-tp4 --blocks 3000"
        " --rate-scale 1.5",
    },
    "targets": {
        "TTFT 1 s, stall 0.1 s, 1 x": f"{AZURE} --slo ttft=1,stall=0.1",
        "TTFT 1 s, stall 0.1 s, 1.5 x": f"{AZURE} --slo ttft=1,stall=0.1 --rate-scale 1.5",
        "TTFT 5 s, stall 0.5 s, 1.5 x": f"{AZURE} --slo ttft=5,stall=0.5 --rate-scale 1.5",
    },
    "long answers": {
        "answers x 4, prompts / 2, 0.4 x": f"{LONG} --rate-scale 0.4",
    },
    "made-up arrivals": {
        "Poisson, 6/s": f'--generate "poisson:rate=6,{MADE_UP}"',
        "bursts, 6/s": f'--generate "gamma:rate=6,burstiness=0.25,{MADE_UP}"',
        "heavy bursts, 6/s": f'--generate "gamma:rate=6,burstiness=0.05,{MADE_UP}"',
        "closed loop of 64": f'--generate "closed:concurrency=64,{MADE_UP}"',
    },
    "shared prefixes": {
        "Mooncake, prompts / 10, 1 x": MOONCAKE,
        "Mooncake, prompts / 10, 2 x": f"{MOONCAKE} --rate-scale 2",
        "8 prefixes of 2,048 tokens, 12/s": '--generate "shared-prefix:rate=12,requests=400"',
    },
    "meant to hurt": {
        "giant-head": "--generate giant-head:requests=400",
        "same-length-wave": "--generate same-length-wave",
        "far-cap": "--generate far-cap:requests=400",
        "drift": "--generate drift:requests=400",
    },
}
WORSE, TAIL = 0.995, 1.3
"""A goodput against another arm's below, an E2E p99 against native's above: a loss, printed in italics."""
HEAD = """\
<!-- written by scripts/lab_table.py -->

# Proxima in many settings of the lab

Goodput is requests per second that attained their targets. In italics: a goodput below the other arm's, an E2E
mean above native's, an E2E p99 above 1.3 times native's; [why](README.md#where-proxima-loses).

"""
COLUMNS = (
    "setting",
    "attained: native",
    "deadline-watermark",
    "proxima",
    "goodput: proxima / native",
    "proxima / deadline-watermark",
    "E2E mean: proxima / native",
    "E2E p99: proxima / native",
    "preemptions: native",
    "proxima",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--again", action="append", default=[], choices=ARMS, metavar="ARM")
    parser.add_argument("--only", default="", metavar="TEXT", help="only lines whose group or name has it")
    options = parser.parse_args()
    store = FOLDER / "lab-table.json"
    known: dict[str, Any] = json.loads(store.read_text(encoding="utf-8")) if store.exists() else {}
    for group, lines in LINES.items():
        for name, flags in lines.items():
            found = known.get(flags, {})
            missing = [arm for arm in ARMS if arm not in found or arm in options.again]
            if missing and options.only in f"{group}, {name}":
                found = known[flags] = {**found, **_run(flags, missing, options.traces)}
                _write(store, known)
                attained = ", ".join(f"{arm} {found[arm]['attainment']:.1%}" for arm in ARMS)
                print(f"{group}, {name}: {attained}", flush=True)
    _write(store, known)


def _run(flags: str, arms: list[str], traces: Path) -> dict[str, Any]:
    from proxima_engine.lab import cli, experiment
    from proxima_engine.lab.arms import arm

    parser = argparse.ArgumentParser()
    cli.add_setting(parser)
    options = parser.parse_args(shlex.split(flags))
    if options.trace:
        options.trace = traces / options.trace
    setting = cli.setting_of(options)
    return {name: experiment.run_arm(arm(name), setting) for name in arms}


def _write(store: Path, known: dict[str, Any]) -> None:
    """What is known of today's lines, in their order."""
    flags = [each for lines in LINES.values() for each in lines.values() if each in known]
    ordered = {each: {arm: known[each][arm] for arm in ARMS} for each in flags}
    store.parent.mkdir(exist_ok=True)
    store.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    store.with_suffix(".md").write_text(_markdown(ordered), encoding="utf-8")


def _markdown(known: dict[str, Any]) -> str:
    text = HEAD + _cells(COLUMNS) + "|---|" + "---:|" * (len(COLUMNS) - 1) + "\n"
    for group, lines in LINES.items():
        text += _cells([f"**{group}**", *[""] * (len(COLUMNS) - 1)])
        text += "".join(_row(name, known[flags]) for name, flags in lines.items() if flags in known)
    text += "\nEach line is `proxima lab compare --arms native,deadline-watermark,proxima` with these flags:\n\n"
    text += "| setting | flags |\n|---|---|\n"
    return text + "".join(_cells([name, f"`{flags}`"]) for lines in LINES.values() for name, flags in lines.items())


def _row(name: str, arms: dict[str, Any]) -> str:
    native, simple, proxima = (arms[arm] for arm in ARMS)
    goodput = [_ratio(proxima, other, "goodput_rps") for other in (native, simple)]
    mean, p99 = (_ratio(proxima, native, figure) for figure in ("e2e_mean_s", "e2e_p99_s"))
    return _cells(
        [
            name,
            *(f"{each['attainment']:.1%}" for each in (native, simple, proxima)),
            *(_marked(ratio, worse=ratio is not None and ratio < WORSE) for ratio in goodput),
            _marked(mean, worse=mean is not None and mean > 1 / WORSE),
            _marked(p99, worse=p99 is not None and p99 > TAIL),
            f"{native['preemptions']}",
            f"{proxima['preemptions']}",
        ]
    )


def _cells(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |\n"


def _ratio(of: dict[str, Any], to: dict[str, Any], figure: str) -> float | None:
    return of[figure] / to[figure] if to[figure] else None


def _marked(ratio: float | None, *, worse: bool) -> str:
    if ratio is None:
        return "-"
    return f"*{ratio:.2f}*" if worse else f"{ratio:.2f}"


if __name__ == "__main__":
    main()
