"""What the soak finds in the figures of its rests."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

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
    first = soak.Rest(0.25, 0, 900.0, 1200.0, 4, 30, 12, 0, 0, 0, 0)
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


@pytest.mark.parametrize("name", ["gateway_mib", "engine_mib"])
def test_memory_that_grows_with_requests_is_found_and_noise_is_not(soak, name):
    def growing(mib_per_rest: float) -> list[Any]:
        return [replace(each, **{name: 1000 + mib_per_rest * number}) for number, each in enumerate(rests(soak))]

    assert soak.verdict(growing(0.5)) == {}
    assert list(soak.verdict(growing(soak.NOISE_MIB[name] / 3))) == [name]


def test_what_warming_up_takes_is_no_growth(soak):
    found = rests(soak)
    found[0] = replace(found[0], gateway_mib=500.0, tasks=5, sockets=1)
    assert soak.verdict(found) == {}


def test_a_scrape_is_summed_over_labels(soak):
    assert soak.metrics('a{b="1"} 2.0\na{b="2"} 3.0\nc 1\n# HELP c\n') == {"a": 5.0, "c": 1.0}
