"""GPU gauges under the names, units and labels of NVIDIA's dcgm-exporter, so that its dashboards and alerts fit.

Read through NVML, which comes with the driver. Where there is no driver, no GPU, or a GPU does not know a value, the
series is absent.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pynvml
from prometheus_client.registry import Collector

from proxima_config.metrics import gpu as catalogue
from proxima_config.metrics.metric import Metric
from proxima_server.metrics.families import Family, family

_MIB = 1024 * 1024

Labels = tuple[str, ...]


@dataclass
class _Device:
    handle: Any
    labels: Labels
    xid: int = 0
    """The newest error that the driver reported since the gateway started; 0 for none."""


class GPUs(Collector):
    """The GPUs that this process may use (CUDA_VISIBLE_DEVICES)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._devices: list[_Device] | None = None
        self._events: Any = None
        self._readings: dict[Metric, list[tuple[Labels, float]]] = {}

    def refresh(self) -> None:
        """Read all values. Takes milliseconds per GPU, on another thread than the event loop's."""
        with self._lock:
            if self._devices is None:
                self._devices = self._find()
            self._take_events()
            readings: dict[Metric, list[tuple[Labels, float]]] = {}
            for device in self._devices:
                for metric, read in _READ.items():
                    try:
                        readings.setdefault(metric, []).append((device.labels, read(device)))
                    except pynvml.NVMLError:
                        continue
            self._readings = readings

    def collect(self) -> Iterator[Family]:
        """What the last refresh has read."""
        for metric in _READ:
            yield family(metric, self._readings.get(metric, []))

    def _find(self) -> list[_Device]:
        try:
            pynvml.nvmlInit()
            handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
            devices = [_Device(handle, _labels(index, handle)) for index, handle in enumerate(handles)]
        except pynvml.NVMLError:
            return []
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        devices = [device for device in devices if is_visible(device.labels[0], device.labels[1], visible)]
        self._listen(devices)
        return devices

    def _listen(self, devices: list[_Device]) -> None:
        try:
            self._events = pynvml.nvmlEventSetCreate()
            for device in devices:
                pynvml.nvmlDeviceRegisterEvents(device.handle, pynvml.nvmlEventTypeXidCriticalError, self._events)
        except pynvml.NVMLError:
            # Windows, MIG and some virtual GPUs have no events; without them errors stay unknown, and are shown as 0.
            self._events = None

    def _take_events(self) -> None:
        while self._events is not None:
            try:
                event = pynvml.nvmlEventSetWait(self._events, 0)
                uuid = pynvml.nvmlDeviceGetUUID(event.device)
            except pynvml.NVMLError:  # a timeout: there are no more
                return
            for device in self._devices or ():
                if device.labels[1] == uuid:
                    device.xid = event.eventData


def is_visible(index: str, uuid: str, visible_devices: str | None) -> bool:
    """Whether CUDA shows the GPU to this process: the variable lists indices, or beginnings of UUIDs."""
    if visible_devices is None:
        return True
    listed = [name.strip() for name in visible_devices.split(",")]
    return index in listed or any(name.startswith("GPU-") and uuid.startswith(name) for name in listed)


def _labels(index: int, handle: Any) -> Labels:
    pci = pynvml.nvmlDeviceGetPciInfo(handle).busId
    return (
        str(index),
        pynvml.nvmlDeviceGetUUID(handle),
        pci.decode() if isinstance(pci, bytes) else pci,
        f"nvidia{pynvml.nvmlDeviceGetMinorNumber(handle)}",
        pynvml.nvmlDeviceGetName(handle),
        socket.gethostname(),
    )


def _memory(device: _Device) -> Any:
    try:
        # Tells used memory without what the driver keeps for itself, as DCGM does.
        return pynvml.nvmlDeviceGetMemoryInfo(device.handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError:
        return pynvml.nvmlDeviceGetMemoryInfo(device.handle)


_READ: Mapping[Metric, Callable[[_Device], float]] = {
    catalogue.GPU_UTIL: lambda device: pynvml.nvmlDeviceGetUtilizationRates(device.handle).gpu,
    catalogue.GPU_FB_USED: lambda device: _memory(device).used // _MIB,
    catalogue.GPU_FB_FREE: lambda device: _memory(device).free // _MIB,
    catalogue.GPU_POWER: lambda device: pynvml.nvmlDeviceGetPowerUsage(device.handle) / 1000,
    catalogue.GPU_TEMP: lambda device: pynvml.nvmlDeviceGetTemperature(device.handle, pynvml.NVML_TEMPERATURE_GPU),
    catalogue.GPU_SM_CLOCK: lambda device: pynvml.nvmlDeviceGetClockInfo(device.handle, pynvml.NVML_CLOCK_SM),
    catalogue.GPU_XID: lambda device: device.xid,
}
