"""Life of the engine: start, failure, death and stop, with real processes in place of vLLM's."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import signal
from types import SimpleNamespace

import psutil
import pytest
from fake_engine import FakeBuild

from proxima_config.errors import ConfigError, EngineStartError
from proxima_config.layering import load_settings
from proxima_engine import processes
from proxima_engine.runtime import EnginePhase, EngineRuntime, EngineUnavailable


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("PROXIMA_ENGINE_DIRECTORY", raising=False)
    return tmp_path


def runtime(build) -> EngineRuntime:
    return EngineRuntime(load_settings(environ={}), build=build)


async def test_ready_then_stopped_and_nothing_left(temporary):
    build = FakeBuild("ready")
    engine = runtime(build)
    engine.start()
    assert engine.phase is EnginePhase.STARTING
    with pytest.raises(EngineUnavailable, match="starting"):
        _ = engine.client
    assert await engine.wait() is EnginePhase.READY
    assert engine.client.process is build.process
    assert engine.args.shutdown_timeout == 0
    await engine.stop()
    await engine.stop()
    assert engine.phase is EnginePhase.STOPPED
    assert not alive(build)
    assert list(temporary.iterdir()) == []


async def test_the_root_cause_of_a_failed_start_comes_from_the_child(temporary):
    engine = runtime(FakeBuild("fails"))
    engine.start()
    assert await engine.wait() is EnginePhase.FAILED
    assert engine.failed.is_set()
    assert engine.failure == "ValueError: the KV cache is too small"
    assert isinstance(engine.start_error, EngineStartError)
    with pytest.raises(EngineUnavailable, match="KV cache"):
        _ = engine.client
    await engine.stop()


async def test_a_wrong_setting_keeps_its_exit_code():
    def refuse(*_):
        raise ConfigError("engine.dtype=float7 is unknown")

    engine = runtime(refuse)
    engine.start()
    assert await engine.wait() is EnginePhase.FAILED
    assert engine.start_error.exit_code == 2
    await engine.stop()


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGKILL, id="killed"), pytest.param(signal.SIGABRT, id="abort")]
)
async def test_death_after_ready_is_seen_and_takes_the_workers_along(number):
    build = FakeBuild("ready")
    engine = runtime(build)
    engine.start()
    await engine.wait()
    os.kill(build.process.pid, number)
    await engine.failed.wait()
    assert engine.phase is EnginePhase.FAILED
    assert signal.Signals(number).name in engine.failure
    with pytest.raises(EngineUnavailable):
        _ = engine.client
    await engine.stop()
    assert not alive(build)


async def test_the_exit_code_is_awaited_when_another_thread_has_reaped_the_process():
    """vLLM's monitor waits for the same process; until it has stored the code, everybody else reads None."""
    ours, theirs = multiprocessing.Pipe()
    theirs.close()
    codes = itertools.chain([None, None], itertools.repeat(-signal.SIGKILL))

    class Reaped:
        name = "EngineCore"
        sentinel = ours
        exitcode = property(lambda self: next(codes))

    client = SimpleNamespace(
        engine_core=SimpleNamespace(resources=SimpleNamespace(engine_manager=SimpleNamespace(processes=[Reaped()])))
    )
    assert await processes.exit_codes(client) == {"EngineCore": -signal.SIGKILL}


async def test_a_death_that_is_only_announced_is_seen():
    """Ray's engines are actors: there is no process of ours to end."""
    client = SimpleNamespace(
        errored=False,
        engine_core=SimpleNamespace(resources=SimpleNamespace(engine_manager=None), get_output_async=None),
        output_processor=SimpleNamespace(get_num_unfinished_requests=lambda: 0),
        reset_mm_cache=lambda: asyncio.sleep(0),
        shutdown=lambda timeout: None,
    )
    engine = runtime(lambda *_: (client, SimpleNamespace()))
    engine.start()
    await engine.wait()
    client.errored = True
    with pytest.raises(EngineUnavailable, match="died"):
        _ = engine.client
    await engine.failed.wait()
    await engine.stop()


async def test_requests_that_are_still_with_the_engine_end_with_it():
    from vllm.v1.engine.exceptions import EngineDeadError

    engine = runtime(FakeBuild("ready"))
    engine.start()
    await engine.wait()
    told = []
    engine.client.output_handler = asyncio.create_task(asyncio.Event().wait())
    engine.client.output_processor.propagate_error = told.append
    await engine.stop()
    assert [type(error) for error in told] == [EngineDeadError]


async def test_stop_while_loading_ends_the_engine_that_ignores_sigterm():
    build = FakeBuild("loads")
    engine = runtime(build)
    engine.start()
    await asyncio.to_thread(build.spawned.wait)
    await engine.stop()
    assert engine.phase is EnginePhase.STOPPED
    assert engine.failure is None
    assert await engine.wait() is EnginePhase.STOPPED
    assert not alive(build)


async def test_stop_before_any_process_keeps_one_from_starting():
    build = FakeBuild("loads")
    build.spawn_allowed.clear()
    engine = runtime(build)
    engine.start()
    stopping = asyncio.create_task(engine.stop())
    await asyncio.sleep(0)
    build.spawn_allowed.set()
    await stopping
    assert build.process is None


async def test_stop_without_start(temporary):
    engine = runtime(FakeBuild("ready"))
    await engine.stop()
    assert engine.phase is EnginePhase.STOPPED
    assert list(temporary.iterdir()) == []


def alive(build: FakeBuild) -> list[int]:
    pids = [build.process.pid, build.worker_pid]
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]
