"""A real vLLM scheduler and KV-cache manager, stepped by hand: no model, no worker process, a clock of our own.

The worker's place is taken by :class:`PagedMemory`, which writes each token into the block and offset that the
scheduler names and checks, before "computing" a token, that every earlier position of that request still holds what
the request's own text says. A block given to two requests, freed too early or missing from the output shows up as a
wrong read, which on a real device would be silently wrong text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lagging_bus import LaggingCopier
from vllm.config import VllmConfig
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from proxima_engine.lab.bare_scheduler import bare_config, bare_scheduler, block_hasher
from proxima_engine.scheduler import ProximaAsyncScheduler, ProximaScheduler
from proxima_engine.swap.lanes import CopyTimes
from proxima_engine.swap.transfers import SwapMetadata
from proxima_engine.swap.worker_side import SwapWorkerSide

STEP_S = 0.05
STOP = 999
SPOILED = -1
NONSENSE = 998
SCHEDULERS = {
    ("proxima", False): ProximaScheduler,
    ("proxima", True): ProximaAsyncScheduler,
    ("native", False): Scheduler,
    ("native", True): AsyncScheduler,
}


def engine_config(
    *, overlap: bool = False, scheduler_options: dict[str, Any] | None = None, **engine: Any
) -> VllmConfig:
    """vLLM's configuration without a model; `overlap` keeps one step in flight."""
    flags: dict[str, Any] = {
        "max_model_len": 2048,
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 64,
        "additional_config": {"proxima": scheduler_options or {}},
    }
    return bare_config(overlap=overlap, **(flags | engine))


class PagedMemory:
    """What the device would hold: per slot of each block a fingerprint of the text up to that position."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.slots: dict[tuple[int, int], int] = {}
        self.tables: dict[str, list[int]] = {}
        self.adapters: dict[str, int] = {}
        """LoRA adapters: they give the same text other KV."""
        self._fingerprints: dict[str, list[int]] = {}

    def take_tables(self, output: SchedulerOutput) -> None:
        for new in output.scheduled_new_reqs:
            self.tables[new.req_id] = list(new.block_ids[0])
        cached = output.scheduled_cached_reqs
        for request_id, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if request_id in cached.resumed_req_ids:
                self.tables[request_id] = list(blocks[0]) if blocks else []
            elif blocks:
                self.tables[request_id] += blocks[0]

    def spoil(self, block: int) -> None:
        """Nobody wrote what was to be written there."""
        self.slots |= {(block, offset): SPOILED for offset in range(self.block_size)}

    def compute(self, request_id: str, tokens: list[int], start: int, end: int) -> bool:
        """Write positions start..end of a text, then read all of 0..end back.

        False, and nothing but nonsense written, if it reads something spoiled.
        """
        if any(self.slots.get(self._slot(request_id, position)) == SPOILED for position in range(start)):
            self.slots |= {self._slot(request_id, position): SPOILED for position in range(start, end)}
            return False
        text = self._fingerprints.setdefault(request_id, [])
        for token in tokens[len(text) : end]:
            text.append(hash((text[-1] if text else self.adapters.get(request_id, 0), token)))
        for position in range(start, end):
            self.slots[self._slot(request_id, position)] = text[position]
        for position in range(end):
            held = self.slots.get(self._slot(request_id, position))
            assert held == text[position], f"{request_id}: wrong KV at position {position}"
        return True

    def _slot(self, request_id: str, position: int) -> tuple[int, int]:
        return self.tables[request_id][position // self.block_size], position % self.block_size


class SlotCopier:
    """Copies blocks of a PagedMemory to a host memory and back; raises where it is told to."""

    bytes_per_block = 1

    def __init__(self, memory: PagedMemory, fails: Callable[[], bool]) -> None:
        self._memory = memory
        self._fails = fails
        self._host: dict[tuple[int, int], int | None] = {}

    def store(self, device_blocks: Sequence[int], host_blocks: Sequence[int]) -> None:
        self._copy(self._memory.slots, device_blocks, self._host, host_blocks)

    def load(self, device_blocks: Sequence[int], host_blocks: Sequence[int]) -> int:
        self._copy(self._host, host_blocks, self._memory.slots, device_blocks)
        return 0

    def fetch_ahead(self, host_blocks: Sequence[int]) -> int:
        return 0

    def take_times(self) -> CopyTimes:
        return CopyTimes(0.0, 0.0)

    def _copy(self, source: Any, from_blocks: Sequence[int], target: Any, to_blocks: Sequence[int]) -> None:
        if self._fails():
            message = "broken on purpose"
            raise RuntimeError(message)
        for old, new in zip(from_blocks, to_blocks, strict=True):
            for offset in range(self._memory.block_size):
                target[new, offset] = source.get((old, offset))


def next_token(tokens: list[int]) -> int:
    """The "model": a fixed function of the text so far."""
    return (sum(tokens[-8:]) * 31 + len(tokens)) % 997 + 1


@dataclass
class SteppingEngine:
    """Steps a scheduler as the engine core does; asynchronous ones keep one step in flight."""

    vllm_config: VllmConfig
    blocks: int
    kind: str = "proxima"
    make_scheduler: Callable[..., Scheduler] | None = None
    """Instead of a kind: called as vLLM calls its scheduler class."""
    now_s: float = 1000.0
    started_s: dict[str, float] = field(default_factory=dict)
    start_order: list[str] = field(default_factory=list)
    texts: dict[str, list[int]] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)
    delivered: dict[str, list[int]] = field(default_factory=dict)
    """Tokens that the scheduler passed on to the client."""
    copy_fails: Callable[[], bool] = lambda: False
    """Asked before each copy between device and host."""
    bus: bool = False
    """Whether one lies between them, as on CUDA; on a CPU they are the same memory."""
    newer_runner: bool = False
    """Whether steps are told as vLLM's newer model runner wants it, which is its default where Triton is."""

    def __post_init__(self) -> None:
        config = self.vllm_config
        self._hasher = block_hasher(config.cache_config.block_size)
        self._overlap = bool(config.scheduler_config.async_scheduling)
        make_scheduler = self.make_scheduler or SCHEDULERS[self.kind, self._overlap]
        self.scheduler = bare_scheduler(make_scheduler, config, self.blocks, log_stats=True)
        self.scheduler.use_v2_model_runner = self.newer_runner
        if isinstance(self.scheduler, ProximaScheduler):
            self.scheduler.proxima_clock = lambda: self.now_s
        self.memory = PagedMemory(config.cache_config.block_size)
        swap = getattr(self.scheduler, "proxima_swap", None)
        host_blocks = swap.ledger.host_blocks if swap is not None else 0
        self._swap = SwapWorkerSide(self.blocks + 1, host_blocks, self._make_copier)
        self._swap.register({})
        self._in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()
        self._prompts: dict[str, list[int]] = {}
        self._answer_tokens: dict[str, int] = {}

    def add(
        self,
        request_id: str,
        prompt: list[int] | int,
        max_tokens: int,
        *,
        priority: int = 0,
        answer_tokens: int | None = None,
        hints: dict[str, Any] | None = None,
        adapter: int = 0,
    ) -> Request:
        """``answer_tokens``: where the model stops by itself; without it the answer goes on to ``max_tokens``.
        ``hints``: what the door says about it (`proxima_config.hints`). ``adapter``: 0 for none."""
        tokens = [len(self._prompts) + 1] * prompt if isinstance(prompt, int) else prompt
        request = Request(
            request_id=request_id,
            prompt_token_ids=list(tokens),
            sampling_params=SamplingParams(
                max_tokens=max_tokens, ignore_eos=True, stop_token_ids=[STOP], extra_args=hints
            ),
            pooling_params=None,
            arrival_time=self.now_s + 1e-6 * len(self._prompts),
            priority=priority,
            block_hasher=self._hasher,
            lora_request=LoRARequest(f"adapter-{adapter}", adapter, "/nowhere") if adapter else None,
        )
        self.memory.adapters[request_id] = adapter
        self._prompts[request_id] = list(tokens)
        if answer_tokens is not None:
            self._answer_tokens[request_id] = answer_tokens
        self.texts[request_id] = list(tokens)
        self.scheduler.add_request(request)
        return request

    def abort(self, request_id: str) -> None:
        if self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED):
            self.ended[request_id] = "abort"

    def step(self) -> SchedulerOutput:
        output = self.scheduler.schedule()
        for new in output.scheduled_new_reqs:
            self.started_s.setdefault(new.req_id, self.now_s)
            self.start_order.append(new.req_id)
        self._in_flight.append((output, self._run(output)))
        self.now_s += STEP_S
        while len(self._in_flight) > int(self._overlap):
            self._finish(*self._in_flight.popleft())
        return output

    def drain(self, max_steps: int = 10_000) -> None:
        """Step until nobody is left."""
        for _ in range(max_steps):
            if self.scheduler.has_unfinished_requests():
                self.step()
            elif self._in_flight:
                self._finish(*self._in_flight.popleft())
            else:
                return
        unfinished = sorted(set(self._prompts) - set(self.ended))
        message = f"not finished after {max_steps} steps: {unfinished}"
        raise AssertionError(message)

    @property
    def free_blocks(self) -> int:
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def expected_text(self, request_id: str, output_tokens: int) -> list[int]:
        """The text of a request that ran alone."""
        tokens = list(self._prompts[request_id])
        for _ in range(output_tokens):
            tokens.append(self._next_token(request_id, tokens))
        return tokens

    def check_integrity(self) -> None:
        """With nobody left, every block is free again."""
        assert self.free_blocks == self.blocks, f"{self.blocks - self.free_blocks} blocks leaked"
        assert not self.scheduler.waiting
        assert len(self.scheduler.waiting) == 0
        assert not self.scheduler.running

    def _run(self, output: SchedulerOutput) -> ModelRunnerOutput:
        swap = output.kv_connector_metadata
        if isinstance(swap, SwapMetadata):
            self._swap.store(swap.stores, swap.step)
        self.memory.take_tables(output)
        bad_blocks: set[int] = set()
        if isinstance(swap, SwapMetadata):
            # Of others vLLM does not know, and starts them after the forward pass, over what that computed.
            assert output.has_sync_kv_loads or not swap.loads
            self._swap.load(swap.loads)
            self._swap.fetch_ahead(swap.fetches)
            bad_blocks = self._swap.take_bad_device_blocks()
            for block in bad_blocks:
                self.memory.spoil(block)
        request_ids, sampled = [], []
        starts = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        starts |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        # vLLM's model runner cuts what it knows of a request back to what the scheduler knows: tokens of steps that
        # were in flight when it was preempted may have been dropped.
        for request_id, known in zip(cached.req_ids, cached.num_output_tokens, strict=True):
            del self.texts[request_id][len(self._prompts[request_id]) + known :]
        for new in output.scheduled_new_reqs:
            # The newer model runner is told of those who resume as of new ones, with all of their text.
            if new.prefill_token_ids is not None:
                del self.texts[new.req_id][len(new.prefill_token_ids) :]
        for request_id, count in output.num_scheduled_tokens.items():
            text, end = self.texts[request_id], starts[request_id] + count
            if not self.memory.compute(request_id, text, starts[request_id], end):
                request_ids.append(request_id)
                sampled.append([NONSENSE] if end >= len(text) else [])
                continue
            new = [self._next_token(request_id, text)] if end == len(text) else []
            # The worker knows a sampled token before the scheduler does when a step is in flight, which also means
            # that it computes one more for a request that has just stopped.
            if text[-1] != STOP:
                text.extend(new)
            request_ids.append(request_id)
            sampled.append(new)
        index = {request_id: position for position, request_id in enumerate(request_ids)}
        told = KVConnectorOutput(invalid_block_ids=bad_blocks, kv_connector_worker_meta=self._swap.take_report())
        return ModelRunnerOutput(
            req_ids=request_ids, req_id_to_index=index, sampled_token_ids=sampled, kv_connector_output=told
        )

    def _make_copier(self, caches: Any, num_blocks: int, host_blocks: int) -> SlotCopier | LaggingCopier:
        if self.bus:
            return LaggingCopier(self.memory, host_blocks, self._copy_fails)
        return SlotCopier(self.memory, self._copy_fails)

    def _copy_fails(self) -> bool:
        return self.copy_fails()

    def _next_token(self, request_id: str, tokens: list[int]) -> int:
        produced = len(tokens) - len(self._prompts[request_id])
        return STOP if produced + 1 == self._answer_tokens.get(request_id) else next_token(tokens)

    def _finish(self, output: SchedulerOutput, result: ModelRunnerOutput) -> None:
        for batch in self.scheduler.update_from_output(output, result).values():
            for one in batch.outputs:
                self.delivered.setdefault(one.request_id, []).extend(one.new_token_ids)
                if one.finish_reason is not None:
                    self.ended[one.request_id] = str(one.finish_reason)
