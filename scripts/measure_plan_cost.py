"""How long planning a step takes: vLLM's own `schedule()` against Proxima's, on the same queue and pool.

    .venv/bin/python scripts/measure_plan_cost.py --running 256 --waiting 1000 --rounds 5

The lab's engine steps both under a closed loop that keeps so many waiting; the pool holds about so many running
requests. Only `schedule()` is timed, planning included. The two take turns every few steps, so that a machine that
becomes faster or slower does so for both; still it should do nothing else. Each round is a process of its own: in one
that goes on, rounds drift.

Python's garbage collector has, as in vLLM's engine core, all frozen that is there before the first request, and is on;
but it waits while `schedule()` is timed and makes up for that right after. It would go through the objects of both
engines and of the lab, and at the cost of whoever happens to allocate the last object of a generation.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from vllm.utils.gc_utils import freeze_gc_heap

from proxima_engine.lab.arms import ArmContext, arm
from proxima_engine.lab.engine import EngineShape, LabEngine
from proxima_engine.lab.profiles import Limits, profile
from proxima_engine.lab.requests import LabRequest

BLOCK, PROMPT, CAP = 16, 256, 512
ANSWERS = (32, 64, 128, 256)
WARM_UP_STEPS, STEPS, TURN_STEPS = 300, 500, 5


class Measured:
    """One scheduler under the load; ``took_s`` are its steps."""

    def __init__(self, name: str, running: int, waiting: int) -> None:
        blocks = running * (PROMPT + sum(ANSWERS) // len(ANSWERS)) // BLOCK
        limits = Limits(max_num_batched_tokens=8192, max_num_seqs=4 * running, async_scheduling=True)
        shape = EngineShape(blocks=blocks, block_size=BLOCK, max_model_len=PROMPT + CAP, limits=limits)
        context = ArmContext(ttft_s=2.0, stall_s=0.2, max_wait_s=75.0, true_lengths={}, seed=0)
        self._engine = LabEngine(shape, profile("h100-llama2-7b").cost, arm(name).make(context))
        self._schedule = self._engine.scheduler.schedule
        self._engine.scheduler.schedule = self._timed
        self._wanted = running + waiting
        self._sent = self._open = 0
        self.took_s: list[float] = []

    def run(self, steps: int) -> None:
        for _ in range(steps):
            while self._open < self._wanted:
                answer = ANSWERS[self._sent % len(ANSWERS)]
                self._engine.add(LabRequest(f"r{self._sent}", self._engine.now_s, PROMPT, answer, CAP))
                self._sent, self._open = self._sent + 1, self._open + 1
            end = self._engine.advance()
            self._open -= len(end.finished) if end else 0

    def _timed(self) -> object:
        gc.disable()
        started = time.perf_counter()
        try:
            return self._schedule()
        finally:
            self.took_s.append(time.perf_counter() - started)
            gc.enable()


def measure(running: int, waiting: int) -> tuple[list[float], list[float]]:
    """One round: what each step took, in seconds, native's and Proxima's."""
    native, proxima = (Measured(name, running, waiting) for name in ("native", "proxima"))
    freeze_gc_heap()
    for each in (native, proxima):
        each.run(WARM_UP_STEPS)
        each.took_s.clear()
    for _ in range(STEPS // TURN_STEPS):
        native.run(TURN_STEPS)
        proxima.run(TURN_STEPS)
    return native.took_s, proxima.took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--running", type=int, default=256)
    parser.add_argument("--waiting", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    ratios = []
    for _ in range(options.rounds):
        # Not forked: vLLM's libraries have threads, which a fork would leave behind half alive.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
            took_s = fresh.submit(measure, options.running, options.waiting).result()
        means = [statistics.fmean(each) * 1e6 for each in took_s]
        medians = [statistics.median(each) * 1e6 for each in took_s]
        ratios.append(means[1] / means[0])
        print(
            f"native {medians[0]:.0f} us (mean {means[0]:.0f}), proxima {medians[1]:.0f} us (mean {means[1]:.0f}), "
            f"ratio of means {ratios[-1]:.2f}",
            flush=True,
        )
    print(f"proxima / native: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
