"""One engine in virtual time: vLLM's own scheduler and KV-cache manager, with a cost model in place of the device.

A step is scheduled, costed and given its tokens at the virtual time at which the device would have finished it. With
asynchronous scheduling one step is in flight: the next is planned when the one before it was taken in, and starts on
the device when that one has finished, as in vLLM's engine core with a batch queue of two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from proxima_config import hints
from proxima_engine.lab.bare_scheduler import (
    SchedulerFactory,
    bare_config,
    bare_scheduler,
    bare_spec,
    block_hasher,
)
from proxima_engine.lab.cost import CostModel
from proxima_engine.lab.decode_step import ANSWERED, DecodeBatch, DecodeStep
from proxima_engine.lab.profiles import Limits
from proxima_engine.lab.requests import PREFIX_BLOCK_TOKENS, LabRequest
from proxima_engine.lab.shortcuts import CountingRequest, quick_block_hasher, shorten
from proxima_engine.scheduling.step_work import StepWork, first_positions, step_work
from proxima_engine.swap.setup import transfer_config
from proxima_engine.swap.transfers import SwapMetadata, SwapReport

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_STOP, _PROMPT = 2, 4
_STOPPED = [_STOP]
_FIRST_UNIQUE = 1000


@dataclass(frozen=True, slots=True)
class EngineShape:
    """What the engine is started with."""

    blocks: int
    """Usable KV blocks. vLLM keeps one more for itself, which `--num-gpu-blocks-override` counts."""
    block_size: int
    max_model_len: int
    limits: Limits
    watermark: float = 0.0
    prefix_caching: bool = True
    host_blocks: int = 0
    """Blocks of host memory for KV of those who yield."""


@cache
def _config(shape: EngineShape) -> VllmConfig:
    """Kept, because vLLM takes a third of a second for one; schedulers only read it."""
    config = bare_config(
        overlap=shape.limits.async_scheduling,
        block_size=shape.block_size,
        max_model_len=shape.max_model_len,
        max_num_batched_tokens=max(shape.limits.max_num_batched_tokens, shape.limits.max_num_seqs),
        max_num_seqs=shape.limits.max_num_seqs,
        enable_prefix_caching=shape.prefix_caching,
        watermark=shape.watermark,
    )
    if shape.host_blocks:
        page_bytes = bare_spec(shape.block_size).page_size_bytes
        config.kv_transfer_config = transfer_config(config, shape.host_blocks * page_bytes)
    return config


@cache
def _sampling_params(cap_tokens: int, request_class: str) -> SamplingParams:
    """Schedulers only read them."""
    return SamplingParams(
        max_tokens=cap_tokens,
        stop_token_ids=[_STOP],
        temperature=0.0,
        extra_args={hints.CLASS: request_class} if request_class else None,
    )


@dataclass(slots=True)
class LabSequence:
    """A request inside the engine."""

    length: int
    """Tokens known to the worker: prompt and answer so far."""
    last_length: int
    """With the last token but one of its answer."""
    computed: int = 0
    """Highest position that was ever computed; what lies below it and is computed again was lost."""


@dataclass(frozen=True, slots=True)
class StepEnd:
    """What one finished step brought."""

    now_s: float
    tokens: Sequence[str]
    """Ids of requests that got a token."""
    finished: Sequence[str]


class LabEngine:
    """Steps one scheduler. ``now_s`` is the only clock that any part of it sees.

    ``shortcuts`` spare vLLM's code the calls that change nothing: faster, but then its real time says nothing about it.
    """

    def __init__(
        self, shape: EngineShape, cost: CostModel, make_scheduler: SchedulerFactory, *, shortcuts: bool = False
    ) -> None:
        self.now_s = 0.0
        self.recomputed_tokens = 0
        self.preemptions = 0
        self.blocks = shape.blocks
        self._block_size = shape.block_size
        self._cost = cost
        self._depth = 2 if shape.limits.async_scheduling else 1
        self._in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput, float]] = deque()
        self._device_free_s = 0.0
        self._sequences: dict[str, LabSequence] = {}
        self._batch: DecodeBatch | None = None
        self._decoding: list[LabSequence] = []
        """Of the batch."""
        make_hasher = quick_block_hasher if shortcuts else block_hasher
        self._hasher = make_hasher(shape.block_size) if shape.prefix_caching else None
        self._unique = _FIRST_UNIQUE
        self.scheduler = bare_scheduler(make_scheduler, _config(shape), shape.blocks)
        self._make_request: Callable[..., Request] = Request
        if shortcuts:
            shorten(self.scheduler)
            self._make_request = partial(CountingRequest, block_size=shape.block_size)
        # Those of Proxima's family plan by a clock; vLLM's own have none.
        self.scheduler.proxima_clock = lambda: self.now_s

    def add(self, request: LabRequest) -> None:
        self._sequences[request.request_id] = LabSequence(
            length=request.input_tokens, last_length=request.input_tokens + request.output_tokens - 1
        )
        self.scheduler.add_request(
            self._make_request(
                request_id=request.request_id,
                prompt_token_ids=self._prompt(request),
                sampling_params=_sampling_params(request.cap_tokens, request.request_class),
                pooling_params=None,
                arrival_time=self.now_s,
                block_hasher=self._hasher,
            )
        )

    def advance(self) -> StepEnd | None:
        """Schedule what can be, then take in the oldest step; None when there is nothing to compute now."""
        while len(self._in_flight) < self._depth and self.scheduler.has_unfinished_requests():
            output = self.scheduler.schedule()
            if not output.total_num_scheduled_tokens:
                # An empty step still carries news, such as who finished, that the scheduler wants back.
                self.scheduler.update_from_output(output, ModelRunnerOutput(req_ids=[], req_id_to_index={}))
                break
            self._dispatch(output)
        if not self._in_flight:
            return None
        output, result, end_s = self._in_flight.popleft()
        self.now_s = end_s if self._depth > 1 else end_s + self._cost.host_gap_s
        return self._take_in(output, result)

    def wait_until(self, time_s: float) -> None:
        """Let time pass without computing."""
        self.now_s = max(self.now_s, time_s)

    @property
    def running(self) -> int:
        return len(self.scheduler.running)

    @property
    def used_blocks(self) -> int:
        return self.blocks - int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def check_integrity(self) -> None:
        """With nobody left, every block is free again. Raises LabError."""
        left = sorted(self._sequences)
        if left or self.scheduler.has_unfinished_requests():
            raise LabError(f"{len(left)} requests have not ended, such as {left[:3]}")
        if self.used_blocks:
            raise LabError(f"{self.used_blocks} blocks are held by nobody")

    def _dispatch(self, output: SchedulerOutput) -> None:
        counts = output.num_scheduled_tokens
        if isinstance(output, DecodeStep):
            batch, starts = output.batch, output.scheduled_cached_reqs.num_computed_tokens
            if batch is not self._batch:
                self._batch, self._decoding = batch, [self._sequences[request_id] for request_id in counts]
            sampled = self._compute(self._decoding, starts, counts.values())
            result = batch.all_answered
            if sampled != result.sampled_token_ids:
                result = ModelRunnerOutput(batch.ids, batch.places, sampled)
            context = sum(starts)
            work = StepWork(len(starts), len(starts), context, context + len(starts))
        else:
            self.preemptions += len(output.scheduled_cached_reqs.resumed_req_ids)
            positions = first_positions(output)
            starts = [positions[request_id] for request_id in counts]
            sampled = self._compute([self._sequences[request_id] for request_id in counts], starts, counts.values())
            result = ModelRunnerOutput(list(counts), dict(zip(counts, range(len(counts)), strict=True)), sampled)
            work = step_work(output)
        start_s = max(self.now_s, self._device_free_s)
        self._device_free_s = start_s + self._copy_s(output) + self._cost.step_s(work)
        self._in_flight.append((output, result, self._device_free_s))

    def _copy_s(self, output: SchedulerOutput) -> float:
        """Seconds for which copies hold the device up: all that they take, as if nothing ran beside them."""
        metadata = output.kv_connector_metadata
        if not isinstance(metadata, SwapMetadata):
            return 0.0
        blocks = sum(len(each.host_blocks) for each in (*metadata.stores, *metadata.loads))
        copy_s = self._cost.copy_s(blocks * self._block_size)
        if blocks:
            self.scheduler.proxima_swap.take_report(SwapReport(copy_s=copy_s, under_way_s=copy_s))
        return copy_s

    def _compute(
        self, sequences: Iterable[LabSequence], starts: Iterable[int], counts: Iterable[int]
    ) -> list[list[int]]:
        """What the worker would do: the positions are computed, and whoever's last one is among them gets a token."""
        sampled: list[list[int]] = []
        for sequence, start, count in zip(sequences, starts, counts, strict=True):
            end, length = start + count, sequence.length
            if start < sequence.computed:
                self.recomputed_tokens += min(end, sequence.computed) - start
            if end > sequence.computed:
                sequence.computed = end
            if end < length:
                sampled.append([])
                continue
            sequence.length = length + 1
            sampled.append(ANSWERED if length < sequence.last_length else _STOPPED)
        return sampled

    def _take_in(self, output: SchedulerOutput, result: ModelRunnerOutput) -> StepEnd:
        told = self.scheduler.update_from_output(output, result)
        if isinstance(output, DecodeStep) and told is output.batch.told:
            return StepEnd(self.now_s, output.batch.ids, ())
        tokens: list[str] = []
        finished: list[str] = []
        for batch in told.values():
            for one in batch.outputs:
                if one.new_token_ids:
                    tokens.append(one.request_id)
                if one.finish_reason is not None:
                    finished.append(one.request_id)
                    del self._sequences[one.request_id]
        return StepEnd(self.now_s, tokens, finished)

    def _prompt(self, request: LabRequest) -> list[int]:
        """Tokens that are equal exactly where prefixes are."""
        tokens: list[int] = []
        for hash_id in request.prefix_hash_ids:
            tokens += [-1 - hash_id] * PREFIX_BLOCK_TOKENS
        del tokens[request.input_tokens :]
        rest = request.input_tokens - len(tokens)
        if rest:
            self._unique += 1
            tokens += [self._unique] + [_PROMPT] * (rest - 1)
        return tokens


class LabError(RuntimeError):
    """A scheduler that lost a request or a block."""
