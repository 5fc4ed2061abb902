"""What the soak finds in the figures of its rests."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

PATH = Path(__file__).resolve().parents[2] / "scripts" / "soak.py"


@pytest.fixture(scope="module")
def soak() -> ModuleType:
    spec = importlib.util.spec_from_file_location("soak", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["soak"] = module
    spec.loader.exec_module(module)
    return module


def rests(soak: ModuleType, count: int = 9) -> list[Any]:
    sizes = {"gateway_mib": 900.0, "engine_mib": 1200.0, "gateway_malloc_mib": 300.0, "engine_malloc_mib": 800.0}
    counts = {"gateway_blocks": 900_000, "engine_blocks": 2_000_000, "sockets": 4, "threads": 30, "tasks": 12}
    first = soak.Rest(minutes=0.25, requests=0, **sizes, **counts, in_flight=0, running=0, waiting=0, blocks=0)
    return [replace(first, requests=1000 * number) for number in range(count)]


def test_a_steady_gateway_passes(soak):
    assert soak.verdict(rests(soak)) == {}


@pytest.mark.parametrize("name", ["in_flight", "running", "waiting", "blocks"])
def test_anything_left_at_rest_is_found(soak, name):
    found = rests(soak)
    found[4] = replace(found[4], **{name: 1})
    assert list(soak.verdict(found)) == [name]


@pytest.mark.parametrize("name", ["tasks", "sockets", "threads"])
def test_things_that_grow_are_found(soak, name):
    found = [replace(each, **{name: 10 + number}) for number, each in enumerate(rests(soak))]
    assert list(soak.verdict(found)) == [name]


@pytest.mark.parametrize(
    "name",
    ["gateway_mib", "engine_mib", "gateway_malloc_mib", "engine_malloc_mib", "gateway_blocks", "engine_blocks"],
)
def test_memory_that_grows_with_requests_is_found_and_noise_is_not(soak, name):
    noise, _ = soak.KEPT[name]

    def growing(each_rest: float) -> list[Any]:
        return [replace(each, **{name: 1000 + each_rest * number}) for number, each in enumerate(rests(soak))]

    assert soak.verdict(growing(noise / 10)) == {}
    assert list(soak.verdict(growing(noise / 3))) == [name]


def test_figures_that_no_process_told_are_no_proof(soak):
    assert list(soak.verdict([replace(each, engine_blocks=0) for each in rests(soak)])) == ["engine_blocks"]


async def test_processes_tell_what_is_allocated(soak, tmp_path):
    probe = soak.Probe(tmp_path)
    hoard = "import sys; kept = [bytearray(2**20) for _ in range(64)]; print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", hoard]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, env=probe.environment(), stdin=pipe, stdout=pipe)
    await process.stdout.readline()
    for _ in range(2):
        figures = await probe.ask([psutil.Process(process.pid)])
        assert figures.malloc_mib > 64
        assert figures.blocks > 1000
    process.stdin.close()
    await process.wait()


def test_what_warming_up_takes_is_no_growth(soak):
    found = rests(soak)
    found[0] = replace(found[0], gateway_mib=500.0, tasks=5, sockets=1)
    assert soak.verdict(found) == {}


def test_a_scrape_is_summed_over_labels(soak):
    assert soak.metrics('a{b="1"} 2.0\na{b="2"} 3.0\nc 1\n# HELP c\n') == {"a": 5.0, "c": 1.0}
