"""Calibrates a profile of the lab (`cpu-smollm2`, or another name) on this machine and checks what it predicts.

    .venv/bin/python scripts/calibrate_cpu.py --folder calibration

Fits the cost of steps to a gateway that serves mixed traffic, then measures two loads on native scheduling that the fit
has not seen, `pressure` as compare runs it on a CPU and `overload` at 1.2 times of saturation, and lets the lab predict
them. Reports, request logs and the profile stay in the folder.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from pathlib import Path

from proxima_bench import loads, servers
from proxima_bench.arms import Arm

MODEL, NAME = "smollm2-135m", "cpu-smollm2"
PROXIMA = str(Path(sys.executable).with_name("proxima"))
MIXED = (
    "--requests 64 --concurrency 32 --input-tokens 16-384 --output-tokens 8-128 --seed 1",
    "--requests 16 --concurrency 4 --input-tokens 16-256 --output-tokens 16-96 --seed 2",
    "--requests 48 --concurrency 48 --input-tokens 32 --output-tokens 64 --seed 3",
)
PRESSURE = "--preset pressure --requests 64 --warmup 4 --output-tokens 64 --cap-tokens 512 --seed 5"
OVERLOAD = "--preset overload --requests 120 --seed 5"
MULTIPLE = 1.2


async def bench(url: str, flags: str, folder: Path, name: str) -> dict[str, float]:
    """Measure one load; its report and requests go to the folder."""
    command = [PROXIMA, "bench", "serve", "--url", url, *flags.split(), "--json"]
    command += ["--log-requests", str(folder / f"{name}.jsonl")]
    with (folder / f"{name}.json").open("wb") as report:
        await asyncio.to_thread(subprocess.run, command, check=True, stdout=report)
    measured: dict[str, float] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return measured


async def measure(folder: Path, steps: Path) -> None:
    logging = Arm("calibration", kind="proxima", flags=(f"--step-log={steps}",))
    async with servers.running(logging, MODEL, loads.Load(), [], folder / "calibration.log") as url:
        for number, flags in enumerate(MIXED):
            await bench(url, flags, folder, f"mixed{number}")
    native = Arm("native", kind="native")
    pressure = loads.for_cpu(loads.preset("pressure"))
    async with servers.running(native, MODEL, pressure, [], folder / "pressure.log") as url:
        await bench(url, PRESSURE, folder, "pressure")
    overload = loads.preset("overload")
    async with servers.running(native, MODEL, overload, [], folder / "overload.log") as url:
        saturated = await bench(url, f"{OVERLOAD} --concurrency 64", folder, "saturation")
        await bench(url, f"{OVERLOAD} --rate {MULTIPLE * saturated['qps']}", folder, "overload")


def calibrate(folder: Path, steps: Path, name: str) -> None:
    for load, blocks in (("pressure", 44), ("overload", 191)):
        check = f"{folder / f'{load}.json'}:{folder / f'{load}.jsonl'}"
        command = [PROXIMA, "lab", "calibrate", "--steps", str(steps), "--name", name, "--check", check]
        command += ["--blocks", str(blocks), "--block-size", "32", "--output", str(folder / f"{name}.yaml")]
        subprocess.run(command, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("calibration"))
    parser.add_argument("--name", default=NAME, help="of the profile (default: %(default)s)")
    options = parser.parse_args()
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    steps = folder.resolve() / "steps.jsonl"
    steps.unlink(missing_ok=True)
    asyncio.run(measure(folder, steps))
    calibrate(folder, steps, options.name)


if __name__ == "__main__":
    main()
