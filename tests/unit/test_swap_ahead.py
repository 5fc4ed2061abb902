"""KV that moves before it has to: to the host before a request yields, over the bus before one resumes. On vLLM's real
scheduler, over a memory that checks each KV position before it is used."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from stepping_engine import SteppingEngine, engine_config

from proxima_engine.policy.admission import ProximaPolicy
from proxima_engine.policy.plan import Plan, Reason, YieldMode
from proxima_engine.policy.view import StepView
from proxima_engine.swap.fetch_ahead import FetchAhead
from proxima_engine.swap.lanes import CopyTimes
from proxima_engine.swap.ledger import SwapLedger
from proxima_engine.swap.scheduler_side import AHEAD
from proxima_engine.swap.setup import transfer_config
from proxima_engine.swap.store_ahead import BLOCKS_PER_STEP, STAKE, StoreAhead, Victim
from proxima_engine.swap.transfers import SwapMetadata
from proxima_engine.swap.worker_side import SwapWorkerSide

PAGE_BYTES = 32 * 64 * 4 * 2
"""One block of the layer that the bare scheduler has."""
PROMPT = 32 * 10 + 7

overlaps = pytest.mark.parametrize("overlap", [False, True], ids=["sync", "async"])


class Told:
    """Starts whoever waits, but for what a test says."""

    def __init__(self) -> None:
        self.likely: tuple[str, ...] = ()
        self.yields: tuple[str, ...] = ()
        """In the next step, in which nobody else starts."""
        self.held: set[str] = set()

    def plan(self, view: StepView) -> Plan:
        yields, self.yields = self.yields, ()
        waiting = [request.request_id for request in view.waiting]
        return Plan(
            order=tuple(each for each in waiting if each not in self.held),
            held={each: Reason.BLOCKS for each in waiting if each in self.held},
            yields=tuple((each, YieldMode.SWAP) for each in yields),
            likely_victims=self.likely,
        )


def start(*, overlap: bool = False, bus: bool = False, host_blocks: int = 60, blocks: int = 40, **flags: Any) -> Any:
    """An engine and the policy that it follows."""
    config = engine_config(overlap=overlap, **{"enable_prefix_caching": False, **flags})
    config.kv_transfer_config = transfer_config(config, host_blocks * PAGE_BYTES)
    engine = SteppingEngine(config, blocks, bus=bus)
    engine.scheduler.proxima_policy = told = Told()
    return engine, told


def finish(engine: SteppingEngine) -> None:
    """All ended with the text that they would have had alone, and nothing is held on device or host."""
    engine.drain()
    engine.check_integrity()
    assert engine.scheduler.proxima_swap.ledger.pool.blocks_held == 0
    assert engine.scheduler.proxima_guard.failures_total == 0
    for request_id, tokens in engine.delivered.items():
        prompt = engine.expected_text(request_id, 0)
        assert prompt + tokens == engine.expected_text(request_id, len(tokens))


def stored(metadata: SwapMetadata, *, ahead: bool) -> list[int]:
    """Blocks of the device that a step copies to the host."""
    chosen = (store for store in metadata.stores if (store.request_id == AHEAD) is ahead)
    return [block for store in chosen for block in store.device_blocks]


def steps(engine: SteppingEngine, count: int) -> list[SwapMetadata]:
    return [engine.step().kv_connector_metadata for _ in range(count)]


class TestStoresBeforeAYield:
    @overlaps
    def test_at_the_yield_only_the_end_is_copied(self, overlap: bool) -> None:
        engine, told = start(overlap=overlap)
        told.likely = ("a",)
        engine.add("a", PROMPT, 60)
        engine.add("b", PROMPT, 60)
        before = steps(engine, 10)
        assert all(not stored(each, ahead=False) for each in before)
        assert max(len(stored(each, ahead=True)) for each in before) == BLOCKS_PER_STEP
        assert sum(len(stored(each, ahead=True)) for each in before) == 10
        told.yields, told.likely = ("a",), ()
        (at_the_yield,) = steps(engine, 1)
        # The block that is not full yet, and with a step in flight one that may have become full in it.
        assert 1 <= len(stored(at_the_yield, ahead=False)) <= 2
        finish(engine)
        swap = engine.scheduler.proxima_swap
        assert swap.counters.tokens_kept >= PROMPT
        assert (swap.store_ahead.blocks_stored, swap.ledger.blocks_used_of_ahead) == (10, 10)
        assert engine.scheduler._report.snapshot().swap_ahead_blocks_total == {
            "stored": 10,
            "stored_used": 10,
            "fetched": 0,
            "fetched_used": 0,
        }

    def test_nothing_is_copied_while_nobody_is_likely_to_yield(self) -> None:
        engine, _ = start()
        engine.add("a", PROMPT, 40)
        assert not any(each.stores for each in steps(engine, 20))

    @overlaps
    def test_what_a_step_in_flight_computes_is_left_out(self, overlap: bool) -> None:
        engine, told = start(overlap=overlap, max_num_batched_tokens=64)
        told.likely = ("a",)
        engine.add("a", 32 * 8, 10)
        copied = list(itertools.accumulate(len(stored(each, ahead=True)) for each in steps(engine, 4)))
        # A step computes two blocks. With one in flight the results of the step before it are back, and no others.
        assert copied == ([0, 0, 2, 4] if overlap else [0, 2, 4, 6])
        finish(engine)

    @overlaps
    def test_one_whom_vllm_preempts_in_that_step_is_copied_once(self, overlap: bool) -> None:
        """Its blocks are given away in the step that was to store them ahead."""
        engine, told = start(overlap=overlap, blocks=12, scheduling_policy="priority")
        engine.add("low", 32 * 8 - 2, 60, priority=1)
        engine.add("high", 32 * 3 - 12, 60, priority=0)
        low, high = (engine.scheduler.requests[name] for name in ("low", "high"))
        while not low.num_preemptions:
            needs_a_block = high.num_computed_tokens % 32 == 0
            told.likely = ("low",) if needs_a_block and not engine.free_blocks else ()
            metadata = engine.step().kv_connector_metadata
        assert told.likely
        assert len(stored(metadata, ahead=False)) > 8
        assert not stored(metadata, ahead=True)
        finish(engine)

    def test_a_reset_makes_it_void(self) -> None:
        engine, told = start()
        told.likely = ("a",)
        engine.add("a", PROMPT, 60)
        engine.add("b", PROMPT, 60)
        steps(engine, 6)
        told.likely = ()
        engine.scheduler.reset_prefix_cache()
        told.yields = ("a",)
        (at_the_yield,) = steps(engine, 1)
        assert len(stored(at_the_yield, ahead=False)) == 11
        assert engine.scheduler.proxima_swap.ledger.blocks_used_of_ahead == 0
        finish(engine)

    def test_after_a_reset_they_are_stored_anew(self) -> None:
        engine, told = start()
        told.likely = ("a",)
        engine.add("a", PROMPT, 60)
        steps(engine, 6)
        engine.scheduler.reset_prefix_cache()
        assert sum(len(stored(each, ahead=True)) for each in steps(engine, 3)) == 10
        finish(engine)

    @overlaps
    def test_what_a_load_did_not_fill_is_found_by_nobody(self, overlap: bool) -> None:
        """One resumes, and is at once likely to yield again: with a step in flight nobody knows yet that its load
        failed."""
        engine, told = start(overlap=overlap)
        engine.add("a", PROMPT, 30)
        engine.add("b", PROMPT, 30)
        steps(engine, 4)
        told.yields = ("a",)
        steps(engine, 1)
        # Nothing of it is left there, so that what is stored ahead is what the load brought.
        loads = iter([True])
        engine.copy_fails = lambda: next(loads, False)
        told.likely = ("a",)
        steps(engine, 1)
        engine.scheduler.proxima_swap.ledger.pool.forget_all()
        (next_step,) = steps(engine, 1)
        # In flight, what was stored is wrong; else it has started over by then.
        assert bool(stored(next_step, ahead=True)) is overlap
        told.likely = ()
        steps(engine, 2)
        pool = engine.scheduler.proxima_swap.ledger.pool
        assert all(pool.find(key) is None for key in engine.scheduler.requests["a"].block_hashes)
        told.yields = ("a",)
        finish(engine)
        swap = engine.scheduler.proxima_swap
        assert swap.counters.failed == 1
        assert swap.counters.blocks_in > 2 * 10

    @overlaps
    def test_a_copy_that_fails_costs_nobody_its_text(self, overlap: bool) -> None:
        engine, told = start(overlap=overlap)
        failing = iter([True])
        engine.copy_fails = lambda: next(failing, False)
        told.likely = ("a",)
        engine.add("a", PROMPT, 40)
        engine.add("b", PROMPT, 40)
        steps(engine, 6)
        told.yields = ("a",)
        finish(engine)
        swap = engine.scheduler.proxima_swap
        # Those of the first step are stored again.
        assert swap.store_ahead.blocks_stored >= 8 + 10
        assert swap.ledger.blocks_used_of_ahead == 10
        assert swap.counters.tokens_kept >= PROMPT
        assert engine.scheduler._report.snapshot().recomputed_tokens_total == 0
        assert swap.counters.failed == 0, "nobody computes again for it"


KEYS = [bytes([number]) for number in range(20)]
VICTIM = Victim("v", KEYS, range(100, 120))


def store(ahead: StoreAhead, ledger: SwapLedger, *victims: Victim) -> int:
    """Blocks that one step copies."""
    ahead.choose(victims)
    copy = ahead.take(set())
    ledger.step_ends()
    return len(copy.host_blocks) if copy is not None else 0


class TestHowMuchIsStored:
    def test_what_is_held_for_those_who_wait_stays(self) -> None:
        ledger = SwapLedger(host_blocks=5, block_size=16)
        ledger.save("waits", 64, [b"w", b"x", b"y", b"z"], [1, 2, 3, 4])
        ledger.step_ends()
        held = list(ledger.saved_blocks("waits"))
        ahead = StoreAhead(ledger)
        assert store(ahead, ledger, VICTIM) == 1
        assert list(ledger.saved_blocks("waits")) == held
        assert ledger.resume("waits", [], 0, 64, [5, 6, 7, 8]) is not None

    def test_the_most_likely_goes_first_and_a_step_has_its_bound(self) -> None:
        ledger = SwapLedger(host_blocks=60, block_size=16)
        ahead = StoreAhead(ledger)
        other = Victim("o", [b"o" + key for key in KEYS], range(20))
        ahead.choose([VICTIM, other])
        copy = ahead.take(set())
        assert copy is not None
        assert list(copy.device_blocks) == list(VICTIM.device_blocks[:BLOCKS_PER_STEP])

    def test_what_is_not_to_be_read_is_left_out(self) -> None:
        ledger = SwapLedger(host_blocks=60, block_size=16)
        ahead = StoreAhead(ledger)
        ahead.choose([VICTIM])
        copy = ahead.take({VICTIM.device_blocks[0]})
        assert copy is not None
        assert VICTIM.device_blocks[0] not in copy.device_blocks

    def test_it_ends_when_too_much_was_for_nothing_and_goes_on_when_use_was_made_of_it(self) -> None:
        ledger = SwapLedger(host_blocks=60, block_size=16)
        ahead = StoreAhead(ledger)
        # Copies of 8 blocks take as long as to compute 8 * 16 / 2 tokens.
        enough = BLOCKS_PER_STEP * 16 / 2 / STAKE
        assert store(ahead, ledger, VICTIM) == BLOCKS_PER_STEP
        ahead.weigh(copy_s=0.5, token_s=1.0, step_s=1.0, computed_tokens=int(enough) - 1)
        assert store(ahead, ledger, VICTIM) == 0
        ledger.save("v", 128, KEYS[:8], VICTIM.device_blocks)
        assert ledger.blocks_used_of_ahead == BLOCKS_PER_STEP
        ahead.weigh(copy_s=0.5, token_s=1.0, step_s=1.0, computed_tokens=int(enough) - 1)
        assert store(ahead, ledger, VICTIM) == BLOCKS_PER_STEP

    @pytest.mark.parametrize(("step_s", "copied"), [(300.0, BLOCKS_PER_STEP), (330.0, 0)])
    def test_only_who_would_hold_a_step_up(self, step_s: float, copied: int) -> None:
        """20 blocks take 32 s."""
        ledger = SwapLedger(host_blocks=60, block_size=16)
        ahead = StoreAhead(ledger)
        ahead.weigh(copy_s=0.1, token_s=1.0, step_s=step_s, computed_tokens=10**9)
        assert store(ahead, ledger, VICTIM) == copied

    def test_once_begun_it_is_kept_up(self) -> None:
        """A block that becomes full later is copied, although it alone would not be felt."""
        ledger = SwapLedger(host_blocks=60, block_size=16)
        ahead = StoreAhead(ledger)
        ahead.weigh(copy_s=0.1, token_s=1.0, step_s=300.0, computed_tokens=10**9)
        shorter = Victim("v", KEYS[:19], VICTIM.device_blocks)
        assert [store(ahead, ledger, shorter) for _ in range(4)] == [8, 8, 3, 0]
        assert store(ahead, ledger, VICTIM) == 1

    def test_nothing_of_it_is_held_when_the_step_has_ended(self) -> None:
        ledger = SwapLedger(host_blocks=10, block_size=16)
        assert store(StoreAhead(ledger), ledger, VICTIM) == BLOCKS_PER_STEP
        assert ledger.blocks_in_reach == 10

    def test_what_was_pushed_out_is_not_counted_as_used(self) -> None:
        ledger = SwapLedger(host_blocks=8, block_size=16)
        ahead = StoreAhead(ledger)
        assert store(ahead, ledger, VICTIM) == 8
        ledger.save("other", 128, [b"o" + key for key in KEYS[:8]], range(8))
        ledger.forget("other")
        ledger.save("v", 128, KEYS[:8], VICTIM.device_blocks)
        assert ledger.blocks_used_of_ahead == 0


class TestFetchesBeforeAResumption:
    def waiting_on_the_host(self, engine: SteppingEngine, told: Told, *names: str) -> None:
        for name in (*names, "runs"):
            engine.add(name, PROMPT, 60)
        steps(engine, 4)
        told.yields, told.held = names, set(names)

    @overlaps
    def test_what_waits_is_there_when_it_resumes(self, overlap: bool) -> None:
        engine, told = start(overlap=overlap, bus=True)
        self.waiting_on_the_host(engine, told, "a")
        waits = steps(engine, 5)
        ledger = engine.scheduler.proxima_swap.ledger
        fetched = [block for each in waits for block in each.fetches]
        # Each of its blocks once, the end of the text first.
        assert fetched == list(ledger.saved_blocks("a"))[::-1]
        told.held = set()
        steps(engine, 1)
        finish(engine)
        counters = engine.scheduler.proxima_swap.counters
        # The bus of the test has room for eight.
        assert (counters.blocks_fetched, counters.blocks_found_fetched) == (8, 8)
        assert counters.blocks_in == 11

    def test_nothing_is_fetched_while_nobody_waits(self) -> None:
        engine, _ = start(bus=True)
        engine.add("a", PROMPT, 20)
        assert not any(each.fetches for each in steps(engine, 10))

    def test_where_no_bus_lies_between_it_is_no_help_and_does_no_harm(self) -> None:
        engine, told = start()
        self.waiting_on_the_host(engine, told, "a")
        steps(engine, 3)
        told.held = set()
        finish(engine)
        assert engine.scheduler.proxima_swap.counters.blocks_found_fetched == 0

    @overlaps
    def test_another_resumes_first(self, overlap: bool) -> None:
        engine, told = start(overlap=overlap, bus=True)
        self.waiting_on_the_host(engine, told, "a", "b")
        steps(engine, 3)
        told.held = {"a"}
        steps(engine, 2)
        assert engine.scheduler.proxima_swap.counters.blocks_fetched == 8
        told.held = set()
        finish(engine)
        assert engine.scheduler.proxima_swap.counters.blocks_in == 22

    @overlaps
    def test_one_that_is_aborted_leaves_nothing_behind_that_another_could_take_for_its_own(self, overlap: bool) -> None:
        """Its host blocks are the only ones, so that the next who yields gets them."""
        engine, told = start(overlap=overlap, bus=True, host_blocks=11)
        self.waiting_on_the_host(engine, told, "a")
        steps(engine, 3)
        engine.abort("a")
        engine.add("other", PROMPT, 40)
        steps(engine, 3)
        told.yields, told.held = ("runs",), {"runs"}
        # It resumes before anything of its own is fetched.
        steps(engine, 1)
        told.held = set()
        finish(engine)
        assert engine.scheduler.proxima_swap.counters.tokens_kept > 0

    def test_one_whose_kv_is_void_computes_again(self) -> None:
        engine, told = start(bus=True)
        self.waiting_on_the_host(engine, told, "a")
        steps(engine, 3)
        engine.scheduler.reset_prefix_cache()
        assert not any(each.fetches for each in steps(engine, 2))
        told.held = set()
        finish(engine)
        assert engine.scheduler.proxima_swap.counters.blocks_in == 0

    def test_a_fetch_that_fails_ends_fetching_and_nothing_else(self) -> None:
        class NoRoomToFetch:
            bytes_per_block = 1

            def __init__(self) -> None:
                self.asked = 0

            def store(self, device_blocks: Any, host_blocks: Any) -> None: ...

            def load(self, device_blocks: Any, host_blocks: Any) -> int:
                return 0

            def fetch_ahead(self, host_blocks: Any) -> int:
                self.asked += 1
                message = "out of memory on purpose"
                raise RuntimeError(message)

            def take_times(self) -> CopyTimes:
                return CopyTimes(0.0, 0.0)

        copier = NoRoomToFetch()
        worker = SwapWorkerSide(8, 8, lambda *_: copier)
        worker.register({})
        for _ in range(3):
            worker.fetch_ahead((1, 2))
        assert copier.asked == 1
        assert worker.take_report() is None

    def test_a_step_has_its_bound_and_so_has_one_who_waits(self) -> None:
        ahead = FetchAhead(blocks_per_step=3, steps=2)
        blocks = list(range(10))
        assert [ahead.of_step("a", blocks) for _ in range(3)] == [(9, 8, 7), (6, 5, 4), ()]
        assert ahead.of_step("b", [11, 12]) == (12, 11)
        # It may have been driven out meanwhile.
        assert ahead.of_step("a", blocks) == (9, 8, 7)
        ahead.drop("a")
        assert ahead.of_step("a", [1, 2]) == (2, 1)


def yield_into_the_step_of_another(engine: SteppingEngine, told: Told) -> None:
    """vllm#29870: what is being stored is given to somebody else, who writes it in the same step."""
    engine.add("next", 32 * 12, 20)
    told.yields = ("a",)
    assert stored(*steps(engine, 1), ahead=False)
    assert "next" in engine.started_s


def resume_while_the_store_is_in_flight(engine: SteppingEngine, told: Told) -> None:
    """vllm#46014: one that was preempted is back before its store has been reported."""
    told.yields = ("a",)
    store, load = steps(engine, 2)
    assert [each.request_id for each in store.stores] == [each.request_id for each in load.loads] == ["a"]


def keep_the_block_that_is_not_full(engine: SteppingEngine, told: Told) -> None:
    """vllm#43839: the end of the text is stored as well, and the request resumes with a decode."""
    told.yields = ("a",)
    engine.step()
    assert engine.step().num_scheduled_tokens["a"] == 1


@overlaps
@pytest.mark.parametrize("bus", [False, True], ids=["cpu", "bus"])
@pytest.mark.parametrize(
    "race",
    [yield_into_the_step_of_another, resume_while_the_store_is_in_flight, keep_the_block_that_is_not_full],
)
def test_races_of_vllms_own_offloading(race: Callable[[SteppingEngine, Told], None], bus: bool, overlap: bool) -> None:
    # "a" and "b" leave room for one block more.
    engine, told = start(overlap=overlap, bus=bus, blocks=23)
    engine.add("a", PROMPT, 20)
    engine.add("b", PROMPT, 20)
    steps(engine, 3)
    race(engine, told)
    finish(engine)
    assert engine.scheduler.proxima_swap.counters.tokens_kept > 0


@overlaps
@pytest.mark.parametrize("bus", [False, True], ids=["cpu", "bus"])
@pytest.mark.parametrize("steps_later", range(5))
def test_an_abort_with_copies_in_flight_leaks_nothing(steps_later: int, bus: bool, overlap: bool) -> None:
    """In the step that stores ahead, yields, fetches, loads or goes on."""
    engine, told = start(overlap=overlap, bus=bus)
    told.likely = ("a", "b")
    engine.add("a", PROMPT, 30)
    engine.add("b", PROMPT, 30)
    for number in range(steps_later + 2):
        told.yields = ("a",) if number == 2 else ()
        told.held = {"a"} if number in (2, 3) else set()
        engine.step()
    for name in ("a", "b"):
        engine.abort(name)
    ledger = engine.scheduler.proxima_swap.ledger
    assert ledger.blocks_used == 0
    finish(engine)
    assert ledger.blocks_in_reach == ledger.host_blocks


def crowd(engine: SteppingEngine) -> Iterator[tuple[set[str], set[str]]]:
    """Of each step under pressure who yields and who starts or goes on, till all have ended."""
    for index in range(16):
        engine.add(f"r{index}", 32 + index, 150)
    while engine.scheduler.has_unfinished_requests():
        output = engine.step()
        yielded = {request_id for request_id, _ in engine.scheduler.proxima_plan.yields}
        yield yielded | set(output.preempted_req_ids or ()), set(output.num_scheduled_tokens)


@overlaps
@pytest.mark.parametrize("bus", [False, True], ids=["cpu", "bus"])
def test_under_proximas_own_policy_nobody_resumes_in_the_step_in_which_it_yields(bus: bool, overlap: bool) -> None:
    engine, _ = start(overlap=overlap, bus=bus, host_blocks=200, blocks=30)
    engine.scheduler.proxima_policy = ProximaPolicy(max_wait_s=75, stall_s=0.2)
    yields = 0
    for yielded, computed in crowd(engine):
        yields += len(yielded)
        assert not yielded & computed
    finish(engine)
    assert len(engine.ended) == 16
    assert yields > 10
    swap = engine.scheduler.proxima_swap
    assert swap.ledger.blocks_used_of_ahead > 0
    assert (swap.counters.blocks_found_fetched > 0) is bus
