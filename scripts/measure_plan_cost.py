"""How long planning a step takes: vLLM's own `schedule()` against Proxima's, on the same queue and pool.

    .venv/bin/python scripts/measure_plan_cost.py --running 256 --waiting 1000 --rounds 5

The lab's engine steps both in turn under a closed loop that keeps so many waiting; the pool holds about so many
running requests. Only `schedule()` is timed, planning included. Wall-clock: needs a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from proxima_engine.lab.arms import ArmContext, arm
from proxima_engine.lab.engine import EngineShape, LabEngine
from proxima_engine.lab.profiles import Limits, profile
from proxima_engine.lab.requests import LabRequest

BLOCK, PROMPT, CAP = 16, 256, 512
ANSWERS = (32, 64, 128, 256)
WARM_UP_STEPS, STEPS = 300, 500


def measure(name: str, running: int, waiting: int) -> tuple[float, float]:
    """Median and mean microseconds of `schedule()`, planning included."""
    blocks = running * (PROMPT + sum(ANSWERS) // len(ANSWERS)) // BLOCK
    limits = Limits(max_num_batched_tokens=8192, max_num_seqs=4 * running, async_scheduling=True)
    shape = EngineShape(blocks=blocks, block_size=BLOCK, max_model_len=PROMPT + CAP, limits=limits)
    engine = LabEngine(
        shape,
        profile("h100-llama2-7b").cost,
        arm(name).make(ArmContext(ttft_s=2.0, stall_s=0.2, max_wait_s=75.0, true_lengths={}, seed=0)),
    )
    took: list[float] = []
    schedule = engine.scheduler.schedule

    def timed() -> object:
        started = time.perf_counter()
        try:
            return schedule()
        finally:
            took.append(time.perf_counter() - started)

    engine.scheduler.schedule = timed
    sent = open_requests = 0
    for step in range(WARM_UP_STEPS + STEPS):
        while open_requests < running + waiting:
            engine.add(LabRequest(f"r{sent}", engine.now_s, PROMPT, ANSWERS[sent % len(ANSWERS)], CAP))
            sent, open_requests = sent + 1, open_requests + 1
        if step == WARM_UP_STEPS:
            took.clear()
        end = engine.advance()
        open_requests -= len(end.finished) if end else 0
    return statistics.median(took) * 1e6, statistics.fmean(took) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--running", type=int, default=256)
    parser.add_argument("--waiting", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    ratios = []
    for _ in range(options.rounds):
        native, proxima = (measure(name, options.running, options.waiting) for name in ("native", "proxima"))
        ratios.append(proxima[1] / native[1])
        print(
            f"native {native[0]:.0f} us (mean {native[1]:.0f}), proxima {proxima[0]:.0f} us (mean {proxima[1]:.0f}), "
            f"ratio of means {ratios[-1]:.2f}",
            flush=True,
        )
    print(f"proxima / native: {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
