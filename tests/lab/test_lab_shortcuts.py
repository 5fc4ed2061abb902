"""What spares the lab time must not change what it finds: every record of a run is the same with and without."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_utils import KVCacheBlock, get_block_hash

from proxima_engine.lab import generators
from proxima_engine.lab.arms import ARMS, ArmContext
from proxima_engine.lab.bare_scheduler import block_hasher
from proxima_engine.lab.decode_step import schedule_decode_step
from proxima_engine.lab.engine import EngineShape, LabEngine
from proxima_engine.lab.profiles import profile
from proxima_engine.lab.requests import Workload
from proxima_engine.lab.shortcuts import CountingRequest, quick_block_hasher
from proxima_engine.lab.simulate import Run, simulate

BLOCKS, BLOCK_SIZE = 200, 16
TRAFFIC = ("poisson:rate=20,requests=40", "shared-prefix:requests=20,rate=10")
OVERLAP = pytest.mark.parametrize("overlap", [False, True], ids=["sync", "async"])


def made(arm: str, workload: Workload, *, overlap: bool, shortcuts: bool) -> LabEngine:
    lengths = {each.request_id: each.output_tokens for each in workload.requests}
    context = ArmContext(ttft_s=2.0, stall_s=0.2, max_wait_s=75.0, true_lengths=lengths, seed=0)
    machine = profile("h100-llama2-7b")
    limits = replace(machine.limits, async_scheduling=overlap)
    host_blocks = round(ARMS[arm].host_blocks * BLOCKS)
    shape = EngineShape(BLOCKS, BLOCK_SIZE, BLOCKS * BLOCK_SIZE, limits, ARMS[arm].watermark, host_blocks=host_blocks)
    return LabEngine(shape, machine.cost, ARMS[arm].make(context), shortcuts=shortcuts)


def traffic(spec: str) -> Workload:
    return generators.parse(spec, pool_tokens=BLOCKS * BLOCK_SIZE)


def run(arm: str, spec: str, *, overlap: bool, shortcuts: bool) -> Run:
    workload = traffic(spec)
    engine = made(arm, workload, overlap=overlap, shortcuts=shortcuts)
    return replace(simulate(engine, workload, longest_tokens=BLOCKS * BLOCK_SIZE), wall_s=0.0)


def state(engine: LabEngine) -> Any:
    """All that later steps of vLLM's depend on."""
    scheduler, manager = engine.scheduler, engine.scheduler.kv_cache_manager
    names: dict[bytes, int] = {}

    def name(block_hash: bytes) -> int:
        """Which blocks are alike, whatever they are hashed by."""
        return names.setdefault(block_hash, len(names))

    def alike(block: KVCacheBlock) -> int | None:
        return None if block.block_hash is None else name(get_block_hash(block.block_hash))

    requests = {
        request.request_id: (
            request.status,
            request.num_computed_tokens,
            request.num_output_placeholders,
            request.num_in_flight_tokens,
            request.num_stale_output_tokens,
            request.num_preemptions,
            request.is_prefill_chunk,
            list(request.all_token_ids),
            [name(each) for each in request.block_hashes],
            manager.get_block_ids(request.request_id),
            manager.coordinator.single_type_managers[0].num_cached_block.get(request.request_id),
        )
        for request in scheduler.requests.values()
    }
    pool = manager.block_pool
    return (
        requests,
        [request.request_id for request in scheduler.running],
        [request.request_id for request in scheduler.waiting],
        [block.block_id for block in pool.free_block_queue.get_all_free_blocks()],
        [(block.block_id, block.ref_cnt, alike(block)) for block in pool.blocks],
    )


def advance_both(plain: LabEngine, short: LabEngine) -> None:
    ends = [engine.advance() for engine in (plain, short)]
    # Within a step nobody is told of one token before another.
    seen = [end and (end.now_s, sorted(end.tokens), sorted(end.finished)) for end in ends]
    assert seen[0] == seen[1]
    assert state(plain) == state(short)


@OVERLAP
@pytest.mark.parametrize("arm", ["native-watermark", "proxima", "proxima-swap"])
def test_vllm_stands_where_it_would_stand_without_them_after_every_step(arm, overlap, monkeypatch):
    """Down to the block of each request and the order in which free ones are given out."""
    taken = []

    def watched(scheduler, last):
        output = schedule_decode_step(scheduler, last)
        taken.append(output is not None)
        return output

    monkeypatch.setattr("proxima_engine.lab.shortcuts.schedule_decode_step", watched)
    workload = traffic("poisson:rate=60,requests=30,input=3-150,output=1-60")
    plain, short = (made(arm, workload, overlap=overlap, shortcuts=each) for each in (False, True))
    for number, request in enumerate(workload.requests):
        for _ in range(number % 7):
            advance_both(plain, short)
        plain.add(request)
        short.add(request)
    while plain.scheduler.has_unfinished_requests():
        advance_both(plain, short)
    assert any(taken)
    assert not all(taken)


@OVERLAP
@pytest.mark.parametrize("arm", ARMS)
def test_every_record_is_the_same_with_and_without_shortcuts(arm, overlap):
    plain = [run(arm, spec, overlap=overlap, shortcuts=False) for spec in TRAFFIC]
    assert [run(arm, spec, overlap=overlap, shortcuts=True) for spec in TRAFFIC] == plain
    # The traffic reaches what the shortcuts must leave alone.
    assert arm not in ("native", "gang") or sum(each.preemptions for each in plain) > 0


def test_blocks_hash_alike_exactly_where_those_of_vllm_do():
    """Also where Python's own hash of two tokens is the same, as that of -1 and -2."""
    texts = [[7] * 64, [7] * 40 + [8] * 24, [8] + [7] * 63, [-1] * 64, [-2] * 64, [-1] * 32 + [-2] * 32, [7] * 15]

    def hashes(hasher):
        requests = [
            CountingRequest(
                block_size=BLOCK_SIZE,
                request_id=str(number),
                prompt_token_ids=text,
                sampling_params=SamplingParams(max_tokens=8),
                pooling_params=None,
                block_hasher=hasher,
            )
            for number, text in enumerate(texts)
        ]
        for request in requests:
            request.append_output_token_ids([7] * 20)
        return [each for request in requests for each in request.block_hashes]

    quick, own = hashes(quick_block_hasher(BLOCK_SIZE)), hashes(block_hasher(BLOCK_SIZE))
    assert [[a == b for b in quick] for a in quick] == [[a == b for b in own] for a in own]
    assert len(set(own)) < len(own)


def test_prompts_without_a_prefix_cache():
    """Blocks are then neither hashed nor cached."""
    shape = EngineShape(40, BLOCK_SIZE, 640, profile("h100-llama2-7b").limits, prefix_caching=False)
    workload = generators.parse("poisson:rate=50,requests=30,input=20-200,output=20-100", pool_tokens=640)
    context = ArmContext(ttft_s=2.0, stall_s=0.2, max_wait_s=75.0, true_lengths={}, seed=0)
    plain, short = (
        simulate(
            LabEngine(shape, profile("h100-llama2-7b").cost, ARMS["native"].make(context), shortcuts=shortcuts),
            workload,
            longest_tokens=640,
        )
        for shortcuts in (False, True)
    )
    assert plain.records == short.records
    assert plain.preemptions == short.preemptions > 0
