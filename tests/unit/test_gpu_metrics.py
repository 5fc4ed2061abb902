"""GPU gauges as dcgm-exporter shows them, read from a library that speaks NVML."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import fake_driver
import pytest
from fake_gateway import fake_gateway
from prometheus_client.parser import text_string_to_metric_families

from proxima_server.metrics.gpu import is_visible

# A process of its own: the loader looks at LD_LIBRARY_PATH only when one starts.
SCRAPE = """
from prometheus_client import CollectorRegistry, generate_latest
from proxima_server.metrics.gpu import GPUs
gpus, registry = GPUs(), CollectorRegistry()
gpus.refresh()
registry.register(gpus)
print(generate_latest(registry).decode())
"""

Found = dict[tuple[str, str], float]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a driver's library."""
    return fake_driver.build(tmp_path_factory.mktemp("driver"))


def scrape(**environment: str) -> str:
    variables = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, "-c", SCRAPE], env=variables, check=True, capture_output=True, text=True
    ).stdout


def by_gpu(text: str) -> Found:
    return {
        (sample.name.removeprefix("DCGM_FI_DEV_"), sample.labels["gpu"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_gauges_of_two_gpus(driver):
    text = scrape(LD_LIBRARY_PATH=str(driver))
    assert by_gpu(text) == {
        ("GPU_UTIL", "0"): 90,
        ("GPU_UTIL", "1"): 91,
        ("FB_USED", "0"): 60000,
        ("FB_USED", "1"): 60000,
        ("FB_FREE", "0"): 21000,
        ("FB_FREE", "1"): 21000,
        ("POWER_USAGE", "0"): 312.5,
        ("GPU_TEMP", "0"): 60,
        ("GPU_TEMP", "1"): 61,
        ("SM_CLOCK", "0"): 1980,
        ("SM_CLOCK", "1"): 1980,
        ("XID_ERRORS", "0"): 0,
        ("XID_ERRORS", "1"): 79,
    }
    first = next(iter(text_string_to_metric_families(text))).samples[0]
    assert first.labels == {
        "gpu": "0",
        "UUID": "GPU-0000",
        "pci_bus_id": "00000000:07:00.0",
        "device": "nvidia0",
        "modelName": "NVIDIA Test 80GB",
        "Hostname": socket.gethostname(),
    }


def test_only_gpus_that_cuda_shows(driver):
    found = by_gpu(scrape(LD_LIBRARY_PATH=str(driver), CUDA_VISIBLE_DEVICES="1"))
    assert {gpu for _, gpu in found} == {"1"}
    assert found["XID_ERRORS", "1"] == 79


@pytest.mark.parametrize(
    ("visible", "shown"),
    [(None, True), ("0,2", False), ("2, 1", True), ("", False), ("GPU-ab", True), ("GPU-cd", False), ("-1", False)],
)
def test_visible_devices(visible, shown):
    assert is_visible("1", "GPU-abcd", visible) is shown


def test_without_a_driver_there_are_none(tmp_path):
    # Also on a machine that has one: the loader stops at a file of that name that is no library.
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"")
    assert by_gpu(scrape(LD_LIBRARY_PATH=str(tmp_path))) == {}


async def test_the_gateway_answers_without_a_gpu_and_can_be_told_not_to_look():
    for settings in ({}, {"telemetry": {"gpu": False}}):
        async with fake_gateway(**settings) as gateway:
            answer = await gateway.client.get("/metrics")
        assert answer.status_code == 200
        assert ("DCGM_FI_DEV_GPU_UTIL" in answer.text) is not bool(settings)
