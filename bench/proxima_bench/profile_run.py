"""Profiles of arms under a load: each started with a profiler set up, loaded, and captured in the middle of it."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import aiohttp
from rich.console import Console

from proxima_bench import compare_run, live, measurement, servers
from proxima_bench.arms import Arm
from proxima_bench.loads import Load
from proxima_bench.runner import Runner
from proxima_bench.target import Target
from proxima_config.errors import ProximaError, UsageError

TORCH, NSYS = "torch", "nsys"
_NSYS = (
    "profile", "--trace-fork-before-exec=true", "--cuda-graph-trace=node", "--trace=cuda,nvtx,osrt",
    "--capture-range=cudaProfilerApi", "--capture-range-end=repeat", "--force-overwrite=true",
)  # fmt: skip
_MARKS = {"VLLM_CUSTOM_SCOPES_FOR_PROFILING": "1"}
"""Marks the parts of a step in the timeline; costs nothing while no profile is taken."""
_WRITING_S = 900
"""A profile of few seconds can take minutes to write."""
_POLL_S = 0.1


@dataclass(frozen=True)
class ProfilePlan:
    arms: Sequence[Arm]
    load: Load
    model: str
    engine_flags: Sequence[str]
    folder: Path
    """Absolute; each arm has a folder of its own in it."""
    tool: str
    after_s: float
    """How long the load runs before the capture begins."""
    duration_s: float


async def profile(plan: ProfilePlan, console: Console) -> dict[str, list[Path]]:
    """The files of each arm. Raises UsageError where the tool is missing, ProximaError where an arm fails."""
    compare_run.cancel_on_sigterm()
    files = {}
    for arm in plan.arms:
        folder = plan.folder / compare_run.file_name(arm)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "log").unlink(missing_ok=True)
        before = _written(folder)
        compare_run.say(console, f"starting {arm.name}; its log is {folder / 'log'}")
        async with (
            servers.running(
                arm, plan.model, plan.load, [*_flags(plan.tool, folder), *plan.engine_flags], folder / "log",
                _wrapper(plan.tool, folder), {**_MARKS, **os.environ},
            ) as url,
            _loaded(url, plan, console, arm.name) as runner,
        ):  # fmt: skip
            compare_run.say(
                console,
                f"{arm.name}: {plan.duration_s:g} s are profiled, {runner.progress.in_flight} requests in flight",
            )
            await _capture(url, plan.duration_s)
        # nsys writes its file when the range ends, or the server does.
        files[arm.name] = sorted(path for path, mtime in _written(folder).items() if before.get(path) != mtime)
        if not files[arm.name]:
            raise ProximaError(f"{arm.name}: the profile left no file in {folder}")
    return files


def _written(folder: Path) -> dict[Path, int]:
    """The captures that are there, and when each was written (ns): the folder may hold those of an earlier call."""
    return {path: path.stat().st_mtime_ns for path in folder.iterdir() if path.name != "log"}


def _flags(tool: str, folder: Path) -> list[str]:
    if tool == NSYS:
        return ["--profiler-config.profiler=cuda"]
    return [
        "--profiler-config.profiler=torch",
        f"--profiler-config.torch_profiler_dir={folder}",
        "--profiler-config.torch_profiler_with_stack=false",
        "--profiler-config.ignore_frontend=true",
    ]


def _wrapper(tool: str, folder: Path) -> list[str]:
    if tool != NSYS:
        return []
    program = shutil.which("nsys")
    if program is None:
        raise UsageError("--tool nsys: there is no nsys on PATH; it comes with NVIDIA's CUDA toolkit")
    return [program, *_NSYS, f"--output={folder / 'profile'}"]


@asynccontextmanager
async def _loaded(url: str, plan: ProfilePlan, console: Console, title: str) -> AsyncIterator[Runner]:
    """The load, for as long as the body takes; it begins ``after_s`` into the measured part."""
    seen: list[Runner] = []

    @contextmanager
    def watch(runner: Runner) -> Iterator[None]:
        seen.append(runner)
        with live.watching(runner, console=console, title=title):
            yield

    async with measurement.session(Target(url), plan.load) as session:
        sending = asyncio.create_task(session.measure(watch))
        try:
            while not (seen and seen[0].progress.measuring) and not sending.done():
                await asyncio.wait([sending], timeout=_POLL_S)
            await asyncio.wait([sending], timeout=plan.after_s)
            if sending.done():
                # What went wrong, if something did.
                await sending
                raise ProximaError(
                    f"the load had ended {plan.after_s:g} s after it began: give more --requests, or a lower --after-s"
                )
            yield seen[0]
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


async def _capture(url: str, duration_s: float) -> None:
    limit = aiohttp.ClientTimeout(total=_WRITING_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=limit) as session,
            session.post(f"{url}/debug/profile", params={"duration_s": f"{duration_s:g}"}) as answer,
        ):
            if answer.status != HTTPStatus.OK:
                raise ProximaError(f"the profile was refused: {answer.status} {(await answer.text())[:500]}")
    except (aiohttp.ClientError, TimeoutError) as error:
        raise ProximaError(f"the profile was not taken: {error or type(error).__name__}") from error
