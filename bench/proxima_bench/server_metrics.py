"""What the server's own `/metrics` says about a measurement, where there is one."""

from __future__ import annotations

import asyncio
import math
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

Fetch = Callable[[], Awaitable[str | None]]
"""The text of /metrics; None where it cannot be had."""

PREEMPTIONS, KV_USE, RUNNING, DEVICE = "preemptions", "kv_use", "running", "device_utilisation"
WAITING = "waiting"
PREFILL = "prefill_tokens"
"""Prompt tokens that were computed: not those that came from a prefix cache or from host memory."""
RECOMPUTED = "recomputed_tokens"
"""Tokens that were computed again, because their request had lost its KV."""
KV_BLOCKS = "kv_blocks"
"""Blocks of the KV pools together."""
# First name that the server has counts. Engines behind one server are added, or averaged for shares.
_NAMES = {
    PREEMPTIONS: ("vllm:num_preemptions_total",),
    RECOMPUTED: ("proxima_recomputed_tokens_total",),
    KV_USE: ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    RUNNING: ("vllm:num_requests_running",),
    WAITING: ("vllm:num_requests_waiting",),
    DEVICE: ("DCGM_FI_DEV_GPU_UTIL",),
}
_PERCENT = {"DCGM_FI_DEV_GPU_UTIL"}
_SHARES = {KV_USE, DEVICE}
_LINE = re.compile(
    rf"^({'|'.join(name for names in _NAMES.values() for name in names)})(?:\{{.*\}})? (\S+)", re.MULTILINE
)
_POOL = re.compile(r'^vllm:cache_config_info\{.*\bnum_gpu_blocks="(\d+)"', re.MULTILINE)
_PREFILL = re.compile(r'^vllm:prompt_tokens_by_source_total\{.*\bsource="local_compute".*\} (\S+)', re.MULTILINE)
_STEPS = re.compile(r"^proxima_scheduler_steps_total\{.*\} (\S+)", re.MULTILINE)
_INTERVAL_S = 2.0
"""A page with all of vLLM's series costs the server's event loop about 20 ms: an observer must not be felt."""

Sample = Mapping[str, float]


@dataclass
class ServerMetrics:
    samples: list[Sample] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    """When each was taken, in seconds since the measurement began."""

    def report(self) -> dict[str, Any] | None:
        """None when the server showed none of it."""
        if not any(self.samples):
            return None
        return {
            PREEMPTIONS: self._increase(PREEMPTIONS),
            PREFILL: self._increase(PREFILL),
            RECOMPUTED: self._increase(RECOMPUTED),
            KV_BLOCKS: round(blocks[-1]) if (blocks := self._values(KV_BLOCKS)) else None,
            **{figure: self._gauge(figure) for figure in (KV_USE, RUNNING, DEVICE)},
            "series": self._series(),
        }

    def _series(self) -> dict[str, list[float | None]]:
        """Each gauge over time; what the server does not show is left out."""
        shown = [figure for figure in (KV_USE, RUNNING, WAITING, DEVICE) if self._values(figure)]
        columns = {figure: [sample.get(figure) for sample in self.samples] for figure in shown}
        return {"time_s": [round(time_s, 3) for time_s in self.times_s], **columns}

    def _increase(self, figure: str) -> int | None:
        values = self._values(figure)
        return round(values[-1] - values[0]) if values else None

    def _values(self, figure: str) -> list[float]:
        return [sample[figure] for sample in self.samples if figure in sample]

    def _gauge(self, figure: str) -> dict[str, float] | None:
        """Mean and maximum; without the first and last sample, when the server was idle, if there are others."""
        values = self._values(figure)
        values = values[1:-1] or values
        return {"mean": fmean(values), "max": max(values)} if values else None


@asynccontextmanager
async def sampled(fetches: Sequence[Fetch]) -> AsyncIterator[ServerMetrics]:
    """Samples at the beginning, every two seconds while the body runs, and at its end."""
    metrics = ServerMetrics([await _sample(fetches)], [0.0])
    now_s = asyncio.get_running_loop().time
    start_s = now_s()

    async def sample() -> None:
        metrics.samples.append(await _sample(fetches))
        metrics.times_s.append(now_s() - start_s)

    async def keep_sampling() -> None:
        while True:
            await asyncio.sleep(_INTERVAL_S)
            await sample()

    sampler = asyncio.create_task(keep_sampling())
    try:
        yield metrics
    finally:
        sampler.cancel()
        await asyncio.gather(sampler, return_exceptions=True)
    await sample()


def parse(text: str) -> dict[str, float]:
    """The figures in one page of Prometheus' text format; shares from 0 to 1."""
    found: dict[str, list[float]] = defaultdict(list)
    for name, text_value in _LINE.findall(text):
        if (value := _number(text_value)) is not None:
            found[name].append(value / (100 if name in _PERCENT else 1))
    figures = {}
    for figure, names in _NAMES.items():
        values = next((found[name] for name in names if found[name]), None)
        if values:
            figures[figure] = fmean(values) if figure in _SHARES else sum(values)
    prefilled = [value for text_value in _PREFILL.findall(text) if (value := _number(text_value)) is not None]
    if prefilled:
        figures[PREFILL] = sum(prefilled)
    if not any(_number(steps) for steps in _STEPS.findall(text)):
        # vLLM's own scheduler does not count it, and 0 would be praise.
        figures.pop(RECOMPUTED, None)
    if pools := _POOL.findall(text):
        figures[KV_BLOCKS] = sum(int(blocks) for blocks in pools)
    return figures


def _number(text: str) -> float | None:
    """None for what is no number; a page that we did not write may hold anything."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


async def _sample(fetches: Sequence[Fetch]) -> Sample:
    sample: dict[str, float] = {}
    for text in await asyncio.gather(*(fetch() for fetch in fetches)):
        sample |= parse(text or "")
    return sample
