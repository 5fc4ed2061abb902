"""Arms, a workload and a machine put together: what the commands of the lab run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from multiprocessing import get_context
from typing import Any

from proxima_config.errors import ProximaError
from proxima_engine.lab.arms import ArmContext, ArmSpec
from proxima_engine.lab.arms import arm as arm_named
from proxima_engine.lab.engine import EngineShape, LabEngine
from proxima_engine.lab.figures import Figures, figures
from proxima_engine.lab.setting import Setting
from proxima_engine.lab.simulate import Run, simulate
from proxima_engine.lab.timeline import timeline

Progress = Callable[[str], None]
_TARGET = 0.9
"""Share of requests that an arm is asked to attain in a sweep."""


def simulate_arm(arm: ArmSpec, setting: Setting) -> Run:
    """Raises LabError when the arm loses a request or a block."""
    shape = EngineShape(
        blocks=setting.blocks,
        block_size=setting.block_size,
        max_model_len=setting.longest_tokens,
        limits=setting.profile.limits,
        watermark=arm.watermark,
        prefix_caching=setting.prefix_caching,
        host_blocks=round(arm.host_blocks * setting.blocks),
    )
    true_lengths = {each.request_id: each.output_tokens for each in setting.workload.requests}
    context = ArmContext(
        ttft_s=setting.slo.ttft_s,
        stall_s=setting.slo.stall_s,
        max_wait_s=setting.max_wait_s,
        true_lengths=true_lengths,
        seed=setting.seed,
    )
    # The real time of a scheduler is that of its own code.
    shortcuts = not setting.with_wall_time
    engine = LabEngine(shape, setting.profile.cost, arm.make(context), shortcuts=shortcuts)
    return simulate(engine, setting.workload, longest_tokens=setting.longest_tokens)


def run_arm(arm: ArmSpec, setting: Setting) -> Figures:
    """Raises ProximaError when not one request fits into the pool: there is nothing to compare then."""
    run = simulate_arm(arm, setting)
    found = figures(run, setting.slo, with_wall_time=setting.with_wall_time)
    if found["refused"] == found["requests"]:
        pool = f"{setting.blocks} blocks of {setting.block_size} tokens"
        raise ProximaError(f"none of the {found['requests']} prompts leaves room for an answer in {pool}")
    if setting.with_timeline:
        found["timeline"] = timeline(run, setting.slo)
    return {"cheats": arm.cheats, **found}


def compare(arms: Sequence[ArmSpec], setting: Setting, jobs: int, progress: Progress) -> dict[str, Any]:
    """``jobs`` arms at once, each in a process of its own where it is more than one."""
    found = _run_all([(arm, setting, arm.name) for arm in arms], jobs, progress)
    return {
        "setting": setting.describe(),
        "arms": {arm.name: figures for arm, figures in zip(arms, found, strict=True)},
    }


def sweep(
    arms: Sequence[ArmSpec],
    setting: Setting,
    loads: Sequence[float],
    jobs: int,
    progress: Progress,
    bisections: int = 0,
) -> dict[str, Any]:
    """Every arm at every load; a load multiplies the workload's arrival rate.

    ``bisections`` more loads for each arm close in on where its attainment falls below 90 %.
    """
    tasks = [(arm, load) for arm in arms for load in loads]
    found = dict(zip(tasks, _run_at(tasks, setting, jobs, progress), strict=True))
    curves = {arm.name: [(load, found[arm, load]["attainment"]) for load in loads] for arm in arms}
    for _ in range(bisections):
        closer = [(arm, load) for arm in arms if (load := _between(curves[arm.name], _TARGET)) is not None]
        for (arm, load), more in zip(closer, _run_at(closer, setting, jobs, progress), strict=True):
            curves[arm.name] = sorted([*curves[arm.name], (load, more["attainment"])])
    return {
        "setting": setting.describe(),
        "loads": list(loads),
        "arms": {
            arm.name: {
                "attainment": [found[arm, load]["attainment"] for load in loads],
                "e2e_p99_s": [found[arm, load]["e2e_p99_s"] for load in loads],
                "load_at_90": last_load_above(curves[arm.name], _TARGET),
                "bisected": [point for point in curves[arm.name] if point[0] not in loads],
                "figures": [found[arm, load] for load in loads],
            }
            for arm in arms
        },
    }


def _run_at(
    tasks: Sequence[tuple[ArmSpec, float]], setting: Setting, jobs: int, progress: Progress
) -> Sequence[Figures]:
    faster = {load: replace(setting, workload=setting.workload.faster(load)) for _, load in tasks}
    return _run_all([(arm, faster[load], f"{arm.name} at {load:g}x") for arm, load in tasks], jobs, progress)


def _between(curve: Sequence[tuple[float, float]], share: float) -> float | None:
    """The middle of the two loads between which attainment first falls below a share, if it does."""
    for (below, before), (above, after) in pairwise(curve):
        if before >= share > after:
            return (below + above) / 2
    return None


def _run_all(tasks: Sequence[tuple[ArmSpec, Setting, str]], jobs: int, progress: Progress) -> list[Figures]:
    """In the order of the tasks, whatever order they end in."""
    found: list[Figures] = []
    if not tasks:
        return found
    with ExitStack() as stack:
        results: Iterator[Figures]
        if jobs == 1:
            results = (run_arm(arm, setting) for arm, setting, _ in tasks)
        else:
            # Not forked: vLLM's libraries have threads, which a fork would leave behind half alive.
            pool = ProcessPoolExecutor(min(jobs, len(tasks)), mp_context=get_context("spawn"))
            results = stack.enter_context(pool).map(_run_named, *zip(*((a.name, s) for a, s, _ in tasks), strict=True))
        for (_, _, title), figures in zip(tasks, results, strict=True):
            progress(f"{title}: {figures['attainment']:.1%} attained")
            found.append(figures)
    return found


def _run_named(name: str, setting: Setting) -> Figures:
    """An arm is made of functions, which do not travel between processes; its name does."""
    return run_arm(arm_named(name), setting)


def last_load_above(curve: Sequence[tuple[float, float]], share: float) -> float | None:
    """The load at which attainment first falls below a share, between two measured ones by a straight line.

    ``curve``: (load, attainment) in order of load. The highest load where it never does; None where it does from the
    beginning.
    """
    if not curve or curve[0][1] < share:
        return None
    for (load, before), (next_load, after) in pairwise(curve):
        if after < share:
            return load + (next_load - load) * (before - share) / (before - after)
    return curve[-1][0]
