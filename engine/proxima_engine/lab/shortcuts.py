"""vLLM's own scheduler, KV-cache manager and requests, spared the calls that change nothing.

Nearly all that they do in the lab is for the next token of an answer that goes on, within the last block of its
request. vLLM goes through all that this could be (speculation, images, grammars, new blocks, an end) to find that it is
none of them; and it lists for the worker what no worker reads here. These look first, and leave everything else to
vLLM. That makes runs shorter and must not change a figure: a test runs both ways.
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from itertools import chain
from typing import Any

from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from proxima_engine.lab.decode_step import ANSWERED, DecodeBatch, DecodeStep, schedule_decode_step
from proxima_engine.lab.lazy_view import LazyViewBuilder
from proxima_engine.scheduler import ProximaScheduler
from proxima_engine.scheduling.spared_allocation import SparedKVCacheManager

_OBJECTS_BETWEEN_COLLECTIONS = 100_000
_RUNNING = RequestStatus.RUNNING


class CountingRequest(Request):
    """Counts its tokens instead of looking them up several times a step; has text only, and a block hasher."""

    # What vLLM asks by property; no request of the lab has any.
    use_structured_output = False
    has_encoder_inputs = False
    num_tokens = 0
    num_prompt_tokens: int

    def __init__(self, *, block_size: int, prompt_token_ids: list[int], **fields: Any) -> None:
        self._block_size = block_size
        self.num_tokens = len(prompt_token_ids)
        super().__init__(prompt_token_ids=prompt_token_ids, **fields)

    @property
    def num_tokens_with_spec(self) -> int:
        return self.num_tokens

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    def append_output_token_ids(self, token_ids: int | list[int]) -> None:
        new = [token_ids] if isinstance(token_ids, int) else token_ids
        self._output_token_ids += new
        self._all_token_ids += new
        tokens = self.num_tokens = self.num_tokens + len(new)
        if tokens // self._block_size > len(self.block_hashes):
            self.update_block_hashes()


def quick_block_hasher(block_size: int) -> Callable[[Request], list[bytes]]:
    """What gives requests the hashes of their blocks, for the prefix cache. For text only, which needs no hash but of
    the tokens; and within one process Python's own tells them apart."""

    def hashes(request: Request) -> list[bytes]:
        known, tokens = request.block_hashes, request.all_token_ids
        found: list[bytes] = []
        last: bytes = known[-1] if known else b""
        for begin in range(len(known) * block_size, request.num_tokens - block_size + 1, block_size):
            text = array("q", tokens[begin : begin + block_size]).tobytes()
            last = hash(last + text).to_bytes(8, "little", signed=True)
            found.append(last)
        return found

    return hashes


class _LabKVCacheManager(SparedKVCacheManager):
    """For one group of full attention and no speculation."""

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        (group,) = self.coordinator.single_type_managers
        full = num_computed_tokens // group.block_size
        if self.enable_caching and full > group.num_cached_block.get(request.request_id, 0):
            group.cache_blocks(request, num_computed_tokens, replay_boundaries=())


class _LabScheduler(Scheduler):
    """For steps of text without speculation, whose worker is the lab. Who starts and gives way is vLLM's to decide."""

    decode_batch: DecodeBatch | None = None
    """Of the last decode step."""

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:  # noqa: FBT001, FBT002  vLLM's signature
        output = schedule_decode_step(self, self.decode_batch)
        if output is None:
            return super().schedule(throttle_prefills)
        self.decode_batch = output.batch
        return output

    def _reserve_prefill_lookahead(self, request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:  # noqa: ARG002
        # Nothing drafts.
        return max(num_new_tokens, 0)

    def _make_cached_request_data(
        self, running_reqs: list[Request], resumed_reqs: list[Request], *_: Any
    ) -> CachedRequestData:
        requests = list(chain(running_reqs, resumed_reqs))
        return CachedRequestData(
            req_ids=[request.request_id for request in requests],
            resumed_req_ids={request.request_id for request in resumed_reqs},
            new_token_ids=[],
            all_token_ids={},
            new_block_ids=[],
            num_computed_tokens=[request.num_computed_tokens for request in requests],
            num_output_tokens=[],
        )

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        if isinstance(scheduler_output, DecodeStep) and self._all_go_on(scheduler_output, model_runner_output):
            self._go_on_together(scheduler_output.batch)
            return scheduler_output.batch.told
        going_on: list[tuple[Request, int, list[int]]] = []
        others: dict[str, int] = {}
        counts = scheduler_output.num_scheduled_tokens
        for (request_id, count), tokens in zip(counts.items(), model_runner_output.sampled_token_ids, strict=True):
            request = self.requests.get(request_id)
            if request is not None and self._goes_on(request, tokens):
                going_on.append((request, count, tokens))
            elif request is not None and self._fills_a_block(request):
                # Equal blocks are found in the order in which they were cached, so that order is kept.
                found: dict[int, EngineCoreOutputs] = super().update_from_output(scheduler_output, model_runner_output)
                return found
            else:
                others[request_id] = count
        outputs = EngineCoreOutputs(outputs=self._go_on(going_on))
        if outputs.outputs and not others:
            return {0: outputs}
        rest = copy(scheduler_output)
        rest.num_scheduled_tokens = others
        found = super().update_from_output(rest, model_runner_output)
        found.setdefault(0, EngineCoreOutputs()).outputs[:0] = outputs.outputs
        return found

    def _all_go_on(self, step: DecodeStep, result: ModelRunnerOutput) -> bool:
        """Whether all for whom it was still run, have one more token of their answers, and not the last."""
        batch = step.batch
        if step.ends_somebody or result is not batch.all_answered:
            return False
        # Others may have started behind them since.
        return bool(self.running[: len(batch.requests)] == batch.requests)

    def _go_on_together(self, batch: DecodeBatch) -> None:
        overlap, manager = self.scheduler_config.async_scheduling, self.kv_cache_manager
        (group,) = manager.coordinator.single_type_managers
        cached, size = group.num_cached_block, group.block_size
        for request in batch.requests:
            request.num_in_flight_tokens -= 1
            request.append_output_token_ids(ANSWERED)
            if overlap:
                ahead = request.num_output_placeholders = request.num_output_placeholders - 1
                computed = request.num_computed_tokens - ahead
                if computed // size > cached.get(request.request_id, 0):
                    manager.cache_blocks(request, computed)

    def _go_on(self, steps: list[tuple[Request, int, list[int]]]) -> list[EngineCoreOutput]:
        outputs = []
        overlap, manager = self.scheduler_config.async_scheduling, self.kv_cache_manager
        (group,) = manager.coordinator.single_type_managers
        cached, size = group.num_cached_block, group.block_size
        for request, count, tokens in steps:
            request.num_in_flight_tokens -= count
            request.append_output_token_ids(tokens)
            if overlap:
                ahead = request.num_output_placeholders = request.num_output_placeholders - 1
                computed = request.num_computed_tokens - ahead
                if computed // size > cached.get(request.request_id, 0):
                    manager.cache_blocks(request, computed)
            outputs.append(EngineCoreOutput(request.request_id, tokens))
        return outputs

    def _fills_a_block(self, request: Request) -> bool:
        """Whether one more token may fill a block, which is cached then."""
        (group,) = self.kv_cache_manager.coordinator.single_type_managers
        tokens = request.num_computed_tokens - request.num_output_placeholders + 1
        return bool(tokens // group.block_size > group.num_cached_block.get(request.request_id, 0))

    def _goes_on(self, request: Request, tokens: list[int]) -> bool:
        """Whether a request that was answering all along has one more token of its answer, and not the last."""
        return (
            request.status is _RUNNING
            and request.prefill_stats is None
            and not request.num_stale_output_tokens
            and len(tokens) == 1
            and tokens[0] not in request.sampling_params.stop_token_ids
            and request.num_output_tokens + 1 < request.max_tokens
            and request.num_tokens + 1 < self.max_model_len
        )


def shorten(scheduler: Scheduler) -> None:
    """Give a scheduler that has stepped nothing yet the short ways.

    What vLLM built is kept as it is; the classes add methods and no state.
    """
    own = type(scheduler)
    # Next to vLLM's base class, so that whatever builds on that reaches the short ways as it would reach vLLM's.
    bases = (_LabScheduler,) if own is Scheduler else (own, _LabScheduler)
    scheduler.__class__ = type(own.__name__, bases, {})
    scheduler.kv_cache_manager.__class__ = _LabKVCacheManager
    if isinstance(scheduler, ProximaScheduler):
        scheduler._view.__class__ = LazyViewBuilder  # noqa: SLF001  as above


@contextmanager
def rare_collections() -> Iterator[None]:
    """Python looks for cycles of garbage rarely, and not among what was there before, such as vLLM's modules."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
