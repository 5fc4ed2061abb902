"""What --swap keeps on the host and finds there again: the beginning of a text longest, and only what was computed."""

from __future__ import annotations

import pytest
from stepping_engine import SteppingEngine, engine_config

from proxima_engine.policy.plan import Plan
from proxima_engine.policy.view import StepView
from proxima_engine.scheduling.guard import PolicyState
from proxima_engine.swap.ledger import SwapLedger
from proxima_engine.swap.setup import transfer_config

PAGE_BYTES = 32 * 64 * 4 * 2
"""One block of the layer that the bare scheduler has."""


class AllWhoWait:
    def plan(self, view: StepView) -> Plan:
        return Plan(order=tuple(request.request_id for request in view.waiting))


def start(host_blocks: int, blocks: int = 30, *, overlap: bool = False, **flags: object) -> SteppingEngine:
    config = engine_config(overlap=overlap, **flags)
    if host_blocks:
        config.kv_transfer_config = transfer_config(config, host_blocks * PAGE_BYTES)
    engine = SteppingEngine(config, blocks)
    engine.scheduler.proxima_policy = AllWhoWait()
    return engine


def answer(engine: SteppingEngine, request_id: str, prompt: list[int] | int) -> None:
    engine.add(request_id, prompt, 4)
    engine.drain()


def test_of_a_kept_prefix_the_end_is_given_up_first() -> None:
    """The host has room for a part of two texts: what is left of the older one must still be a beginning."""
    engine = start(host_blocks=12)
    swap = engine.scheduler.proxima_swap
    answer(engine, "old", [70] * 330)
    answer(engine, "crowds_it_out", [71] * 32 * 29)
    answer(engine, "takes_some_room", [72] * 32 * 5)
    assert swap.ledger.pool.blocks_kept == 12
    answer(engine, "again", [70] * 330)
    assert 0 < swap.counters.prefix_tokens < 320


def test_a_prefix_that_is_asked_for_stays_on_the_host() -> None:
    ledger = SwapLedger(host_blocks=2, block_size=16)
    for key in (b"a", b"b"):
        assert ledger.keep(key) is not None
        ledger.step_ends()
    # It was loaded, used, and is given up again.
    assert ledger.keep(b"a") is None
    ledger.step_ends()
    assert ledger.keep(b"c") is not None
    ledger.step_ends()
    assert (ledger.kept_tokens([b"a"]), ledger.kept_tokens([b"b"]), ledger.kept_tokens([b"c"])) == (16, 0, 16)


def test_nobody_loads_what_the_same_step_stores() -> None:
    """It may be computed on a load of the step before, of which nobody knows yet whether it failed."""
    ledger = SwapLedger(host_blocks=8, block_size=16)
    ledger.keep(b"1")
    ledger.step_ends()
    ledger.save("a", 40, [b"1", b"2"], [3, 4, 5])
    assert ledger.kept_tokens([b"1", b"2"]) == 16
    ledger.step_ends()
    assert ledger.kept_tokens([b"1", b"2"]) == 32


def test_a_queue_without_plans_remembers_nobody() -> None:
    engine = start(0)
    engine.scheduler.proxima_guard.switch_off("as where the engine is not one for Proxima")
    for index in range(40):
        answer(engine, f"r{index}", 40)
    assert engine.scheduler.proxima_guard.state is PolicyState.NATIVE
    assert len(engine.scheduler.waiting.take_touched()) <= 1


def test_nothing_is_kept_of_a_block_that_was_to_be_filled_in_the_step_in_which_its_owner_was_preempted() -> None:
    """By priority vLLM preempts somebody whom it has scheduled in the same step already, and forgets to take back
    that its last block is full."""
    engine = start(host_blocks=60, blocks=2, scheduling_policy="priority")
    engine.add("low", 20, 60, priority=1)
    engine.step()
    engine.add("high", 22, 40, priority=0)
    for _ in range(12):
        engine.step()
    assert engine.scheduler.requests["low"].num_preemptions == 1
    prefix = engine.texts["low"][:32]
    engine.abort("low")
    engine.abort("high")
    engine.add("next", prefix + [7] * 8, 4)
    engine.drain()
    engine.check_integrity()


@pytest.mark.parametrize("host_blocks", [0, 60], ids=["dropped", "swap"])
@pytest.mark.parametrize("overlap", [False, True], ids=["sync", "async"])
def test_nobody_finds_a_prompt_that_was_to_be_computed_in_the_step_in_which_it_was_preempted(
    overlap: bool, host_blocks: int
) -> None:
    flags = {"max_num_batched_tokens": 128, "long_prefill_token_threshold": 64}
    engine = start(host_blocks, 11, overlap=overlap, scheduling_policy="priority", **flags)
    engine.add("low", 330, 4, priority=1)
    engine.step()
    engine.add("high", 31, 4, priority=0)
    engine.drain()
    assert engine.texts["low"] == engine.expected_text("low", 4)
    engine.check_integrity()
