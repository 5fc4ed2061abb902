"""Metrics of GPUs, named as NVIDIA's dcgm-exporter names them."""

from __future__ import annotations

from proxima_config.metrics.metric import Kind, Metric

_GPU_LABELS = ("gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname")
GPU_UTIL = Metric("DCGM_FI_DEV_GPU_UTIL", Kind.GAUGE, _GPU_LABELS, "GPU utilization (in %).", "percent", on_demand=True)
GPU_FB_USED = Metric(
    "DCGM_FI_DEV_FB_USED", Kind.GAUGE, _GPU_LABELS, "Framebuffer memory used (in MiB).", "MiB", on_demand=True
)
GPU_FB_FREE = Metric(
    "DCGM_FI_DEV_FB_FREE", Kind.GAUGE, _GPU_LABELS, "Framebuffer memory free (in MiB).", "MiB", on_demand=True
)
GPU_POWER = Metric("DCGM_FI_DEV_POWER_USAGE", Kind.GAUGE, _GPU_LABELS, "Power draw (in W).", "W", on_demand=True)
GPU_TEMP = Metric("DCGM_FI_DEV_GPU_TEMP", Kind.GAUGE, _GPU_LABELS, "GPU temperature (in C).", "°C", on_demand=True)
GPU_SM_CLOCK = Metric(
    "DCGM_FI_DEV_SM_CLOCK", Kind.GAUGE, _GPU_LABELS, "SM clock frequency (in MHz).", "MHz", on_demand=True
)
GPU_XID = Metric(
    "DCGM_FI_DEV_XID_ERRORS",
    Kind.GAUGE,
    _GPU_LABELS,
    "Value of the last XID error encountered, since the gateway started; 0 for none.",
    "1",
    on_demand=True,
)
