"""Servers that a comparison starts itself: each a process of its own, its log in a file."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from pathlib import Path

import aiohttp

from proxima_bench.arms import VLLM, Arm
from proxima_bench.loads import Lengths, Load
from proxima_config.errors import ProximaError
from proxima_config.forced_length import PROCESSOR

_PROXIMA = str(Path(sys.executable).with_name("proxima"))
START_TIMEOUT_S = 1800
"""Large models take that long to load."""
_STOP_TIMEOUT_S = 60
_POLL_S = 0.5
_DEATH_S = 5
"""A gateway that has lost its engine needs a moment to say so and to end."""
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
_LAST_LINES = 5


def engine_flags(load: Load) -> list[str]:
    """What every arm is started with, so that the load means what its name says."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in load.engine.items()]
    if load.lengths is Lengths.FORCED:
        flags.append(f"--logits-processors={PROCESSOR}")
    return flags


def gateway_flags(load: Load) -> list[str]:
    """What every arm that is a gateway knows beside that: a deployment is told its targets too."""
    return [f"--ttft-s={load.slo.ttft_s:g}", f"--stall-s={load.slo.stall_s:g}"]


async def command(arm: Arm, model: str, load: Load, extra: Sequence[str], port: int) -> list[str]:
    """The command line of an arm: flags of the load, flags of all arms, and last, so that they win, its own."""
    flags = [*extra, *arm.flags, "--host=127.0.0.1", f"--port={port}"]
    if arm.kind != VLLM:
        own = [*gateway_flags(load), *engine_flags(load)]
        return [_PROXIMA, "serve", model, f"--scheduler={arm.kind}", *own, *flags]
    module = "vllm.entrypoints.openai.api_server"
    return [sys.executable, "-P", "-m", module, f"--model={await _model_folder(model)}", *engine_flags(load), *flags]


@asynccontextmanager
async def running(
    arm: Arm,
    model: str,
    load: Load,
    extra: Sequence[str],
    log: Path,
    wrapper: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[str]:
    """Base URL of the arm's server, started and ready; it is stopped when the body ends, however it ends, and when
    this process is killed.

    ``wrapper`` is a program that runs it, with its own arguments; ``environment`` takes the place of this process's.
    Raises ProximaError with the last lines of its log when it does not get ready, and where the body fails because it
    died.
    """
    port = _free_port()
    arguments = [*wrapper, *await command(arm, model, load, extra, port)]
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        await _until_ready(arm, process, url, log)
        try:
            yield url
        except ProximaError as error:
            with suppress(TimeoutError):
                code = await asyncio.wait_for(process.wait(), _DEATH_S)
                raise ProximaError(f"{arm.name} died with exit code {code}:\n{_end_of(log)}") from error
            raise
    finally:
        await _stop(process)


async def _until_ready(arm: Arm, process: asyncio.subprocess.Process, url: str, log: Path) -> None:
    try:
        async with asyncio.timeout(START_TIMEOUT_S), aiohttp.ClientSession() as session:
            while process.returncode is None:
                with suppress(aiohttp.ClientError, OSError):
                    async with session.get(f"{url}/health") as answer:
                        if answer.status == HTTPStatus.OK:
                            return
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise ProximaError(f"{arm.name} was not ready within {START_TIMEOUT_S} s; its log is {log}") from None
    raise ProximaError(f"{arm.name} ended with exit code {process.returncode} before it was ready:\n{_end_of(log)}")


def _end_with_parent() -> None:
    """In the child: a measurement that is killed with SIGKILL cannot stop what it started."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _STOP_TIMEOUT_S)
    # Workers that outlived it would take cores and memory from the next arm.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


async def _model_folder(model: str) -> str:
    """What vLLM's own server can load: the folder of an embedded model, and any other name as it is."""
    find = await asyncio.create_subprocess_exec(
        _PROXIMA, "model", "path", model, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    output, _ = await find.communicate()
    return output.decode().strip() or model


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end_of(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    lines = [line.removeprefix("proxima: error: ") for line in lines]
    return "\n".join([*lines[-_LAST_LINES:], f"the whole log is {log}"])
