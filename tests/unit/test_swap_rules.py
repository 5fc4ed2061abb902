"""What vLLM 0.32 asks of a KV connector and does with it, as far as --swap is built on that:
docs/decisions/0012-yield-without-loss.md."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from stepping_engine import SteppingEngine, engine_config
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.core.sched.output import SchedulerOutput

from proxima_engine.policy.plan import Plan, YieldMode
from proxima_engine.policy.view import StepView
from proxima_engine.swap.connector import ProximaSwapConnector
from proxima_engine.swap.setup import transfer_config
from proxima_engine.swap.transfers import SwapMetadata, Transfer

PAGE_BYTES = 32 * 64 * 4 * 2
"""One block of the layer that the bare scheduler has."""
BLOCKS = 12

overlaps = pytest.mark.parametrize("overlap", [False, True], ids=["sync", "async"])


class AllWhoWait:
    """Whoever waits starts, after those have yielded who are named for a step."""

    def __init__(self) -> None:
        self.yields: tuple[str, ...] = ()

    def plan(self, view: StepView) -> Plan:
        yields, self.yields = self.yields, ()
        order = tuple(request.request_id for request in view.waiting)
        return Plan(order=order, yields=tuple((each, YieldMode.SWAP) for each in yields))


def start(*, overlap: bool = False) -> Any:
    """An engine and the policy that it follows."""
    config = engine_config(overlap=overlap, enable_prefix_caching=False)
    config.kv_transfer_config = transfer_config(config, 60 * PAGE_BYTES)
    engine = SteppingEngine(config, BLOCKS)
    engine.scheduler.proxima_policy = told = AllWhoWait()
    return engine, told


def two_for_whom_blocks_run_out(engine: SteppingEngine) -> Iterator[SchedulerOutput]:
    """Two who need more than there is in the end."""
    for name in ("a", "b"):
        engine.add(name, 32 * 5 - 2, 100)
    yield from steps(engine)


def steps(engine: SteppingEngine) -> Iterator[SchedulerOutput]:
    while engine.scheduler.has_unfinished_requests():
        yield engine.step()


def test_nothing_is_told_of_blocks_to_come_so_vllm_preempts() -> None:
    """With `has_pending_block_frees` vLLM ends the scan instead, and nobody who needs a block goes on."""
    engine, _ = start()
    connector = engine.scheduler.connector
    assert connector.has_pending_block_frees() is False
    connector.has_pending_block_frees = lambda: True
    for output in itertools.islice(two_for_whom_blocks_run_out(engine), 60):
        assert not output.preempted_req_ids
    assert {"a", "b"} == {request.request_id for request in engine.scheduler.running}
    del connector.has_pending_block_frees
    assert any(output.preempted_req_ids for output in steps(engine))
    engine.drain()
    engine.check_integrity()


@overlaps
def test_nobody_is_told_of_a_preemption_as_of_an_end(overlap: bool) -> None:
    engine, _ = start(overlap=overlap)
    told: list[str] = []
    connector = engine.scheduler.connector
    connector.request_finished_all_groups = lambda request, _: (told.append(request.request_id), (False, None))[1]
    preempted: set[str] = set()
    for output in two_for_whom_blocks_run_out(engine):
        preempted |= set(output.preempted_req_ids or ())
        assert set(told) <= set(engine.ended)
    assert preempted
    assert sorted(told) == ["a", "b"]


@overlaps
def test_what_yields_is_free_in_that_step_and_its_owner_does_not_resume_in_it(overlap: bool) -> None:
    """As a consumer of KV, vLLM would keep the blocks of the connector's requests for steps that are in flight."""
    engine, told = start(overlap=overlap)
    assert not engine.scheduler.defer_block_free
    assert not engine.scheduler.requires_kv_delivery
    engine.add("a", 32 * 5, 20)
    engine.add("b", 32 * 5, 20)
    for _ in range(3):
        engine.step()
    assert engine.free_blocks == 0
    engine.add("c", 32 * 5, 4)
    told.yields = ("a",)
    output = engine.step()
    assert "a" not in output.num_scheduled_tokens
    assert "c" in output.num_scheduled_tokens
    engine.drain()
    engine.check_integrity()


def test_nothing_is_kept_of_blocks_that_are_cleared_before_connectors_have_their_turn() -> None:
    """As the newer model runner does it."""
    engine, told = start()
    engine.add("a", 32 * 4, 20)
    engine.add("b", 32 * 4, 20)
    for _ in range(3):
        engine.step()
    scheduler, swap = engine.scheduler, engine.scheduler.proxima_swap
    cleared = scheduler.kv_cache_manager.get_block_ids("a")[0][1]
    scheduler._get_new_block_ids_to_zero = lambda: [cleared]
    told.yields = ("a",)
    assert not engine.step().kv_connector_metadata.stores
    assert (swap.ledger.saved_tokens("a"), swap.ledger.blocks_used) == (0, 0)
    del scheduler._get_new_block_ids_to_zero
    engine.drain()
    assert swap.counters.blocks_in == 0
    assert engine.texts["a"] == engine.expected_text("a", 20)
    engine.check_integrity()


def test_the_hybrid_kv_manager_stays_on() -> None:
    assert KVConnectorFactory.supports_hma_config(transfer_config(engine_config(), PAGE_BYTES))


class TestWorker:
    """vLLM calls `handle_preemptions` before anything of a step is written, the rest after that."""

    @pytest.fixture
    def cache(self) -> torch.Tensor:
        return torch.arange(BLOCKS + 1, dtype=torch.float32).repeat_interleave(32 * 64 * 2).view(BLOCKS + 1, 1, 32, 128)

    @pytest.fixture
    def connector(self, cache: torch.Tensor) -> ProximaSwapConnector:
        engine, _ = start()
        made = ProximaSwapConnector(engine.vllm_config, KVConnectorRole.WORKER, engine.scheduler.kv_cache_config)
        made.register_kv_caches({"layer": cache})
        return made

    def test_copies_what_yields_before_it_is_overwritten(
        self, connector: ProximaSwapConnector, cache: torch.Tensor
    ) -> None:
        """vllm#29870: the blocks are somebody else's in the same step."""
        connector.handle_preemptions(SwapMetadata(1, stores=(Transfer("a", (3, 7), (5, 0)),)))
        cache[3] = cache[7] = -1
        connector.bind_connector_metadata(SwapMetadata(2, loads=(Transfer("a", (2, 9), (0, 5)),)))
        connector.start_load_kv(None)
        assert (cache[2] == 7).all()
        assert (cache[9] == 3).all()
        assert connector.get_block_ids_with_load_errors() == set()

    def test_stores_before_it_loads_what_the_same_step_gives_away(
        self, connector: ProximaSwapConnector, cache: torch.Tensor
    ) -> None:
        """One resumes in the blocks of one who yields."""
        connector.handle_preemptions(SwapMetadata(1, stores=(Transfer("a", (3,), (0,)),)))
        both = SwapMetadata(2, stores=(Transfer("b", (4,), (1,)),), loads=(Transfer("a", (4,), (0,)),))
        connector.handle_preemptions(both)
        connector.bind_connector_metadata(both)
        connector.start_load_kv(None)
        assert (cache[4] == 3).all()
        connector.bind_connector_metadata(SwapMetadata(3, loads=(Transfer("b", (6,), (1,)),)))
        connector.start_load_kv(None)
        assert (cache[6] == 4).all()

    def test_tells_which_blocks_a_failed_load_did_not_fill(self, connector: ProximaSwapConnector) -> None:
        connector.handle_preemptions(SwapMetadata(1, stores=(Transfer("a", (BLOCKS + 5,), (0,)),)))
        connector.bind_connector_metadata(SwapMetadata(2, loads=(Transfer("a", (4,), (0,)),)))
        connector.start_load_kv(None)
        assert connector.get_block_ids_with_load_errors() == {4}
        report = connector.build_connector_worker_meta()
        assert report.failed == {"a"}
        assert report.loads_failed
