"""What is spared the way through vLLM's allocation comes out as it would have."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stepping_engine import SteppingEngine, engine_config
from vllm.v1.core.kv_cache_manager import KVCacheManager

from proxima_engine.scheduling.spared_allocation import SparedKVCacheManager, spare

BLOCKS = 24
requests = st.lists(
    st.tuples(st.integers(0, 6), st.integers(1, 70), st.integers(1, 60), st.booleans()), min_size=1, max_size=10
)
"""Steps before it comes, tokens of its prompt (others have the same), tokens of its answer, aborted halfway."""


def made(*, spared: bool, overlap: bool, caching: bool = True) -> SteppingEngine:
    config = engine_config(overlap=overlap, enable_prefix_caching=caching, max_num_batched_tokens=64, max_model_len=256)
    engine = SteppingEngine(config, blocks=BLOCKS)
    if not spared:
        engine.scheduler.kv_cache_manager.__class__ = KVCacheManager
    return engine


def state(engine: SteppingEngine) -> Any:
    """All that allocation leaves behind."""
    manager = engine.scheduler.kv_cache_manager
    group = manager.coordinator.single_type_managers[0]
    pool = manager.block_pool
    return (
        {name: manager.get_block_ids(name) for name in engine.scheduler.requests},
        dict(group.num_cached_block),
        [block.block_id for block in pool.free_block_queue.get_all_free_blocks()],
        [(block.ref_cnt, block.block_hash) for block in pool.blocks],
        engine.delivered,
        engine.ended,
    )


@settings(deadline=None)
@given(requests=requests, overlap=st.booleans(), caching=st.booleans())
def test_every_block_is_where_it_would_be_without_it(requests, overlap, caching) -> None:
    """After every step, with prompts in parts, prefixes that are shared, yields and aborts."""
    engines = [made(spared=spared, overlap=overlap, caching=caching) for spared in (True, False)]

    def step() -> None:
        told = [engine.step() for engine in engines]
        assert told[0].num_scheduled_tokens == told[1].num_scheduled_tokens
        assert told[0].scheduled_cached_reqs == told[1].scheduled_cached_reqs
        assert state(engines[0]) == state(engines[1])

    for number, (steps, prompt, answer, aborted) in enumerate(requests):
        for _ in range(steps):
            step()
        for engine in engines:
            if aborted and number:
                engine.abort(f"r{number - 1}")
            engine.add(f"r{number}", [number % 2] * prompt, answer)
    while engines[0].scheduler.has_unfinished_requests():
        step()
    for engine in engines:
        engine.drain()
        engine.check_integrity()


def test_vllm_is_asked_for_a_block_where_one_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, asked = made(spared=True, overlap=False), []
    size = engine.vllm_config.cache_config.block_size
    engine.add("r", 1, 3 * size)
    allocate = KVCacheManager.allocate_slots

    def watched(self: KVCacheManager, request: Any, *args: Any, **options: Any) -> Any:
        asked.append(request.num_computed_tokens)
        return allocate(self, request, *args, **options)

    monkeypatch.setattr(KVCacheManager, "allocate_slots", watched)
    engine.drain()
    # When it starts, and with each token that begins or fills a block.
    assert asked == [0, *(token for token in range(1, 3 * size) if token % size in (0, size - 1))]


def test_only_managers_of_one_kind_are_spared() -> None:
    engine = made(spared=True, overlap=False)
    manager = engine.scheduler.kv_cache_manager
    assert type(manager) is SparedKVCacheManager
    assert not spare(manager), "it is one already"
    native = SteppingEngine(engine_config(), blocks=BLOCKS, kind="native").scheduler.kv_cache_manager
    assert type(native) is KVCacheManager
    native.block_pool.hash_block_size //= 2
    assert not spare(native), "blocks are cached in parts"
    native.block_pool.hash_block_size *= 2
    native.coordinator.single_type_managers *= 2
    assert not spare(native), "two groups"
