"""KV of requests that yield: the real scheduler, and a memory that checks each KV position before it is used."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stepping_engine import SteppingEngine, engine_config
from vllm.config import LoRAConfig, VllmConfig

from proxima_config.settings import ProximaSettings
from proxima_engine.launch import keep_kv_of_those_who_yield
from proxima_engine.policy.admission import ProximaPolicy
from proxima_engine.policy.pace import StepTime
from proxima_engine.policy.plan import Plan, Reason, YieldMode
from proxima_engine.policy.view import StepView
from proxima_engine.swap.copier import UnknownLayoutError, block_rows, copier_for
from proxima_engine.swap.ledger import SwapLedger
from proxima_engine.swap.scheduler_side import TRIED, SwapSchedulerSide
from proxima_engine.swap.setup import transfer_config
from proxima_engine.swap.transfers import SwapReport

PAGE_BYTES = 32 * 64 * 4 * 2
"""One block of the layer that the bare scheduler has."""


STANDS_STILL = 6
"""From this number on nobody starts."""


class Restless:
    """Starts whoever fits, and lets the request that the numbers name yield in the steps that they name."""

    def __init__(self, turns: Iterator[int], *, foresees: bool = False) -> None:
        """``foresees``: says that whoever runs may be next, the last who started first."""
        self._turns = turns
        self._foresees = foresees

    def plan(self, view: StepView) -> Plan:
        turn = next(self._turns)
        running = view.running
        likely = tuple(request.request_id for request in reversed(running)) if self._foresees else ()
        held = {request.request_id: Reason.BLOCKS for request in view.waiting}
        if turn >= STANDS_STILL and running:
            return Plan(order=(), held=held, likely_victims=likely)
        if turn and len(running) > 1:
            yields = ((running[turn % len(running)].request_id, YieldMode.RECOMPUTE),)
            return Plan(order=(), held=held, yields=yields, likely_victims=likely)
        return Plan(order=tuple(held), likely_victims=likely)


def start(
    *,
    overlap: bool = False,
    blocks: int = 30,
    host_blocks: int = 60,
    turns: Iterator[int] | None = None,
    lora: bool = False,
    bus: bool = False,
    foresees: bool = False,
    newer_runner: bool = False,
    **flags: Any,
) -> SteppingEngine:
    config = engine_config(overlap=overlap, **flags)
    if lora:
        config.lora_config = LoRAConfig(max_loras=1)
    config.kv_transfer_config = transfer_config(config, host_blocks * PAGE_BYTES)
    engine = SteppingEngine(config, blocks, bus=bus, newer_runner=newer_runner)
    engine.scheduler.proxima_policy = Restless(turns or itertools.repeat(0), foresees=foresees)
    return engine


def finish(engine: SteppingEngine) -> None:
    """All ended with the text that they would have had alone, and nothing is left on device or host."""
    engine.drain()
    engine.check_integrity()
    assert engine.scheduler.proxima_swap.ledger.blocks_used == 0
    assert engine.scheduler.proxima_guard.failures_total == 0
    for request_id, tokens in engine.delivered.items():
        prompt = engine.expected_text(request_id, 0)
        assert prompt + tokens == engine.expected_text(request_id, len(tokens))


def two_of_whom_one_yields(engine: SteppingEngine) -> None:
    engine.add("a", 32 * 5 + 7, 40)
    engine.add("b", 32 * 5 + 7, 40)


def every(period: int) -> Iterator[int]:
    return itertools.cycle([0] * (period - 1) + [1])


overlaps = pytest.mark.parametrize("overlap", [False, True], ids=["sync", "async"])


@overlaps
def test_one_that_yielded_computes_nothing_again(overlap: bool) -> None:
    engine = start(overlap=overlap, turns=every(10), enable_prefix_caching=False)
    two_of_whom_one_yields(engine)
    computed = 0
    while engine.scheduler.has_unfinished_requests():
        computed += engine.step().total_num_scheduled_tokens
    finish(engine)
    counters = engine.scheduler.proxima_swap.counters
    assert counters.blocks_in > 0
    assert (counters.failed, counters.no_room) == (0, 0)
    assert counters.tokens_kept > 0
    told = engine.scheduler._report.snapshot()
    assert told.host_blocks_total == 60
    assert told.swapped_blocks_total == {"out": counters.blocks_out, "in": counters.blocks_in}
    assert told.recompute_tokens_avoided_total == counters.tokens_kept
    assert told.recomputed_tokens_total == 0
    # Prompts, and each output token but the last, which is not computed. A step in flight may run one past the end.
    assert computed <= 2 * (32 * 5 + 7 + 40)


def test_a_second_yield_copies_only_what_is_new() -> None:
    engine = start(turns=every(10), enable_prefix_caching=False)
    two_of_whom_one_yields(engine)
    copied = []
    while engine.scheduler.has_unfinished_requests():
        copied += [(store.request_id, len(store.host_blocks)) for store in engine.step().kv_connector_metadata.stores]
    finish(engine)
    first = dict(reversed(copied))
    again = [count for name, count in copied if count != first[name]]
    assert again
    assert max(again) <= 2


def test_prefixes_that_are_still_on_the_device_are_not_loaded() -> None:
    engine = start(turns=every(10))
    two_of_whom_one_yields(engine)
    finish(engine)
    counters = engine.scheduler.proxima_swap.counters
    # Nobody took the blocks meanwhile, so that only the last, half full one is not found there.
    assert 0 < counters.blocks_in < counters.blocks_out


@overlaps
def test_without_room_they_compute_again(overlap: bool) -> None:
    engine = start(overlap=overlap, host_blocks=3, turns=every(10))
    two_of_whom_one_yields(engine)
    finish(engine)
    counters = engine.scheduler.proxima_swap.counters
    assert counters.no_room > 0
    assert counters.blocks_in == 0


@overlaps
def test_the_blocks_of_one_that_is_aborted_are_free_at_once(overlap: bool) -> None:
    engine = start(overlap=overlap, turns=every(10))
    two_of_whom_one_yields(engine)
    while not engine.scheduler.proxima_swap.ledger.blocks_used:
        engine.step()
    (waiting,) = engine.scheduler.waiting
    engine.abort(waiting.request_id)
    assert engine.scheduler.proxima_swap.ledger.blocks_used == 0
    finish(engine)


def test_a_reset_of_the_cache_makes_what_is_kept_void() -> None:
    engine = start(turns=every(10))
    two_of_whom_one_yields(engine)
    while not engine.scheduler.proxima_swap.ledger.blocks_used:
        engine.step()
    kept = engine.scheduler.proxima_swap.counters.blocks_in
    engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    engine.scheduler.proxima_policy = Restless(itertools.repeat(0))
    finish(engine)
    assert engine.scheduler.proxima_swap.counters.blocks_in == kept


def test_nobody_is_trapped_while_it_is_loaded() -> None:
    """vllm#45388, #57104, #57841: requests that are loaded wait where a failed allocation ends the scan. Ours start in
    the step that loads them, and are never in that queue."""
    engine = start(turns=every(7), max_num_seqs=4)
    for index in range(12):
        engine.add(f"r{index}", 32 * 3 + index, 50)
    while engine.scheduler.has_unfinished_requests():
        engine.step()
        assert not engine.scheduler.kv_holding_waiting
    finish(engine)
    assert engine.scheduler.proxima_swap.counters.blocks_in > 0


@overlaps
def test_under_proximas_own_policy_those_who_do_not_fit_take_turns(overlap: bool) -> None:
    engine = start(overlap=overlap, host_blocks=200)
    engine.scheduler.proxima_policy = ProximaPolicy(max_wait_s=75, stall_s=0.2)
    for index in range(20):
        engine.add(f"r{index}", 32 + index, 200)
    yields: Counter[YieldMode] = Counter()
    while engine.scheduler.has_unfinished_requests():
        engine.step()
        yields.update(mode for _, mode in engine.scheduler.proxima_plan.yields)
    finish(engine)
    assert len(engine.ended) == 20
    assert yields[YieldMode.SWAP] > 20
    counters = engine.scheduler.proxima_swap.counters
    assert counters.tokens_kept > 1000
    assert counters.no_room == 0


def compute(engine: SteppingEngine, request_id: str, prompt: list[int] | int, tokens: int) -> int:
    """Tokens that were computed for an answer to the end."""
    engine.add(request_id, prompt, tokens)
    computed = 0
    while engine.scheduler.has_unfinished_requests():
        computed += engine.step().total_num_scheduled_tokens
    engine.drain()
    return computed


def crowd_out(engine: SteppingEngine) -> None:
    """Nothing of what anybody left stays in the prefix cache of the device."""
    compute(engine, f"big{len(engine.texts)}", 32 * 29, 10)


@overlaps
def test_the_next_turn_of_a_chat_computes_only_what_is_new(overlap: bool) -> None:
    engine = start(overlap=overlap, host_blocks=120)
    compute(engine, "turn1", 300, 40)
    said = engine.expected_text("turn1", 40)
    crowd_out(engine)
    # Ten blocks are full: of the last token there is no KV.
    assert compute(engine, "turn2", [*said, *[5] * 50], 20) <= 340 + 50 + 20 - 10 * 32
    counters = engine.scheduler.proxima_swap.counters
    assert (counters.prefix_tokens, counters.tokens_kept) == (320, 0)
    told = engine.scheduler._report.snapshot()
    assert (told.prefix_tokens_restored_total, told.host_blocks_used) == (320, 0)
    assert told.host_blocks_kept > 10
    finish(engine)


def test_what_is_still_on_the_device_is_not_stored_and_what_is_stored_not_again() -> None:
    engine = start(host_blocks=120)
    compute(engine, "a", 300, 10)
    assert engine.scheduler.proxima_swap.counters.blocks_out == 0
    crowd_out(engine)
    stored = engine.scheduler.proxima_swap.counters.blocks_out
    assert stored >= 9
    compute(engine, "again", engine.expected_text("a", 0), 10)
    crowd_out(engine)
    # What was loaded is given up a second time; what is new is what crowded it out before.
    assert engine.scheduler.proxima_swap.counters.blocks_out - stored < stored + 29
    assert engine.scheduler.proxima_swap.counters.prefix_tokens == 288


def test_requests_that_yield_get_the_room_of_kept_prefixes() -> None:
    engine = start(host_blocks=12, turns=itertools.chain(itertools.repeat(0, 30), every(10)))
    compute(engine, "before", 400, 10)
    crowd_out(engine)
    assert engine.scheduler.proxima_swap.ledger.pool.blocks_kept == 12
    two_of_whom_one_yields(engine)
    finish(engine)
    counters = engine.scheduler.proxima_swap.counters
    assert counters.tokens_kept > 0
    assert counters.no_room == 0


def test_a_reset_makes_kept_prefixes_void() -> None:
    engine = start(host_blocks=120)
    compute(engine, "a", 300, 10)
    crowd_out(engine)
    engine.scheduler.reset_prefix_cache()
    compute(engine, "again", engine.expected_text("a", 0), 10)
    assert engine.scheduler.proxima_swap.counters.prefix_tokens == 0


def test_no_prefixes_are_kept_where_that_is_switched_off() -> None:
    config = engine_config()
    config.kv_transfer_config = transfer_config(config, 120 * PAGE_BYTES, prefixes=False)
    engine = SteppingEngine(config, 30)
    compute(engine, "a", 300, 10)
    crowd_out(engine)
    assert engine.scheduler.proxima_swap.counters.blocks_out == 0


def step_time(token_s: float) -> StepTime:
    steps = StepTime()
    for number in range(40):
        steps.learn(10 + number % 5, 0.01 + token_s * (10 + number % 5))
    return steps


@pytest.mark.parametrize(
    ("token_s", "asked_for", "stores"),
    [
        pytest.param(1e-3, False, True, id="copies_cost_next_to_nothing"),
        pytest.param(1e-5, False, False, id="nobody_asks_for_them"),
        pytest.param(1e-5, True, True, id="they_are_asked_for"),
        pytest.param(1e-6, True, False, id="computing_is_quicker"),
    ],
)
def test_prefixes_are_stored_as_long_as_that_pays(token_s: float, asked_for: bool, stores: bool) -> None:
    """Copies of a token take 1 us each way."""
    engine = start(host_blocks=300)
    swap, clock = engine.scheduler.proxima_swap, engine.scheduler._step_clock
    clock.step_time, clock.ended = step_time(token_s), lambda *_: None
    for number in range(4):
        compute(engine, f"chat{number}", [3 if asked_for else number] * 400, 10)
        crowd_out(engine)
        swap.counters.copy_s = (swap.counters.blocks_out + swap.counters.blocks_in) * 32 * 1e-6
    before = swap.counters.blocks_out
    compute(engine, "last", [99] * 400, 10)
    crowd_out(engine)
    assert (swap.counters.blocks_out - before > 10) is stores


@pytest.mark.parametrize(
    ("token_s", "kept"),
    [pytest.param(3e-6, "all", id="copying_is_quicker"), pytest.param(1e-6, "few", id="computing_is_quicker")],
)
def test_kv_of_those_who_yield_is_kept_where_that_takes_less_time_than_to_compute_it_again(
    token_s: float, kept: str
) -> None:
    """Copies of a token take 1 us each way. Where that is too much, few are kept all the same, to measure it again."""
    engine = start(turns=every(3), enable_prefix_caching=False)
    swap, clock = engine.scheduler.proxima_swap, engine.scheduler._step_clock
    clock.step_time, clock.ended = step_time(token_s), lambda *_: None
    engine.add("a", 32 * 5 + 7, 300)
    engine.add("b", 32 * 5 + 7, 300)
    saves = Counter[bool]()
    keep = swap.yields

    def watched(*which: Any) -> bool:
        saved = keep(*which)
        saves[saved] += 1
        return saved

    swap.yields = watched
    while engine.scheduler.has_unfinished_requests():
        copied = (swap.counters.blocks_out + swap.counters.blocks_in) * 32
        swap.counters.copy_s = copied * 1e-6
        engine.step()
    finish(engine)
    assert saves.total() > 3 * TRIED
    share = saves[True] / saves.total()
    least, most = (1, 1) if kept == "all" else (0.5 / TRIED, 2 / TRIED)
    assert least <= share <= most


schedules = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 500), st.integers(1, 60)),
        st.tuples(st.just("same"), st.integers(1, 500), st.integers(1, 60)),
        st.tuples(st.just("turn"), st.integers(0, 20), st.integers(1, 60)),
        st.tuples(st.just("abort"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("step"), st.integers(1, 10), st.just(0)),
    ),
    min_size=5,
    max_size=40,
)


@overlaps
@settings(max_examples=60)
@given(
    schedule=schedules,
    turns=st.lists(st.integers(0, 7), min_size=1, max_size=30),
    fails=st.lists(st.booleans(), min_size=1, max_size=12),
    host_blocks=st.sampled_from([0, 8, 60]),
    flags=st.fixed_dictionaries(
        {
            "max_num_batched_tokens": st.sampled_from([64, 2048]),
            "enable_prefix_caching": st.booleans(),
            "scheduling_policy": st.sampled_from(["fcfs", "priority"]),
        }
    ),
    adapters=st.integers(0, 2),
    device=st.fixed_dictionaries({"bus": st.booleans(), "foresees": st.booleans(), "newer_runner": st.booleans()}),
)
def test_whatever_yields_and_fails_texts_are_right_and_nothing_leaks(
    overlap: bool,
    schedule: list[tuple[str, int, int]],
    turns: list[int],
    fails: list[bool],
    host_blocks: int,
    flags: dict[str, Any],
    adapters: int,
    device: dict[str, bool],
) -> None:
    """vllm#29870, #46014, #43839: whoever yields, resumes or is aborted while copies are on their way, whatever of them
    fails, under vLLM's own preemptions too, by priority or not, with prompts that share their blocks or the text of an
    earlier answer, and with LoRA adapters of which one runs at a time; with blocks that are stored before their owner
    yields, and fetched over the bus before it resumes; as either of vLLM's model runners is told of it."""
    yielding = itertools.chain(itertools.islice(itertools.cycle(turns), 300), itertools.repeat(0))
    failing = itertools.chain(itertools.islice(itertools.cycle(fails), 200), itertools.repeat(False))
    engine = start(
        overlap=overlap, host_blocks=host_blocks, turns=yielding, lora=bool(adapters), max_num_seqs=6, **device, **flags
    )
    engine.copy_fails = lambda: next(failing)
    names: list[str] = []
    for action, number, tokens in schedule:
        if action in ("add", "same"):
            names.append(f"r{len(names)}")
            prompt = [7] * number if action == "same" else number
            engine.add(names[-1], prompt, tokens, adapter=len(names) % (adapters + 1), priority=number % 3)
        elif action == "turn" and number < len(names):
            said = engine.expected_text(names[number], len(engine.delivered.get(names[number], ())))
            names.append(f"r{len(names)}")
            adapter = len(names) % (adapters + 1)
            engine.add(names[-1], [*said[-800:], 5], tokens, adapter=adapter, priority=number % 3)
        elif action == "abort" and number < len(names):
            engine.abort(names[number])
        elif action == "step":
            for _ in range(number):
                engine.step()
    finish(engine)
    assert set(engine.ended) == set(names)


@overlaps
def test_a_prompt_that_another_has_computed_further_is_not_loaded_over(overlap: bool) -> None:
    """One yields within a block of its prompt. When it resumes, it shares that block with another, who has filled
    it."""
    turns = itertools.chain([0, 0, 1], itertools.repeat(0))
    engine = start(overlap=overlap, turns=turns, max_num_batched_tokens=100, long_prefill_token_threshold=50)
    engine.add("a", [7] * 330, 60)
    engine.add("b", [7] * 400, 10)
    finish(engine)
    assert engine.scheduler.proxima_swap.counters.blocks_out > 0
    assert engine.scheduler.proxima_swap.counters.blocks_in == 0


def test_what_copies_take_is_told_apart_from_what_they_hold_up() -> None:
    engine = start()
    side = engine.scheduler.proxima_swap
    for held_s, under_way_s in ((0.1, 0.5), (0.2, 0.25)):
        side.take_report(SwapReport(copy_s=held_s, under_way_s=under_way_s))
    told = engine.scheduler._report.snapshot()
    assert told.swap_time_s_total == pytest.approx(0.3)
    assert told.swap_under_way_s_total == pytest.approx(0.75)


def test_a_worker_that_cannot_copy_makes_nobody_count_on_it() -> None:
    """As where its memory could not be had: otherwise the pool would be filled for yields that cost nothing."""
    side = SwapSchedulerSide(host_blocks=8, block_size=16)
    assert side.token_s() == 0.0
    side.take_report(SwapReport(failed=frozenset({"a"})))
    assert side.token_s() is None
    side.take_report(SwapReport(bytes_out=1, copy_s=0.1))
    assert side.token_s() is not None


def test_what_is_all_on_the_device_is_not_loaded() -> None:
    ledger = SwapLedger(host_blocks=8, block_size=16)
    ledger.save("a", 20, [], [3, 4])
    assert ledger.resume("a", [], first_token=20, end_token=20, device_blocks=[3, 9, 10]) is None
    assert ledger.saved_tokens("a") == 0


DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="copies over a bus need a GPU")
    ),
]


@pytest.mark.parametrize("device_type", DEVICES)
@settings(max_examples=40)
@given(
    shape=st.sampled_from([(20, 2, 4, 6), (2, 20, 4, 6), (40, 3, 5), (20, 7)]),
    dtype=st.sampled_from([torch.bfloat16, torch.float32, torch.uint8]),
    data=st.data(),
)
def test_copies_are_exact_to_the_bit(
    device_type: str, shape: tuple[int, ...], dtype: torch.dtype, data: st.DataObject
) -> None:
    """Any sequence of stores and loads, whatever a layer's layout: NaNs included, and no other block is touched."""
    blocks, host_blocks = 20, 12
    size = torch.empty(0, dtype=dtype).element_size()
    layers = {
        str(index): torch.randint(0, 256, (*shape[:-1], shape[-1] * size), dtype=torch.uint8)
        .view(dtype)
        .to(device_type)
        for index in range(3)
    }
    copier = copier_for(layers, blocks, host_blocks)
    rows = [block_rows(layer, blocks) for layer in layers.values()]

    def bits(block: int) -> bytes:
        return b"".join(row[block].contiguous().view(torch.uint8).cpu().numpy().tobytes() for row in rows)

    device = {block: bits(block) for block in range(blocks)}
    host: dict[int, bytes] = {}
    assert copier.bytes_per_block == len(device[0])
    for _ in range(data.draw(st.integers(1, 12))):
        count = data.draw(st.integers(1, host_blocks))
        on_device = data.draw(st.permutations(range(blocks)))[:count]
        on_host = data.draw(st.permutations(range(host_blocks)))[:count]
        if data.draw(st.booleans()):
            copier.store(on_device, on_host)
            host |= {there: device[here] for here, there in zip(on_device, on_host, strict=True)}
        else:
            known = [(here, there) for here, there in zip(on_device, on_host, strict=True) if there in host]
            if known:
                copier.load(*(list(side) for side in zip(*known, strict=True)))
                device |= {here: host[there] for here, there in known}
    assert {block: bits(block) for block in range(blocks)} == device


def test_a_layout_without_blocks_is_refused() -> None:
    with pytest.raises(UnknownLayoutError):
        block_rows(torch.zeros(3, 7, 5), 20)


@pytest.mark.parametrize(
    ("told", "change", "expected"),
    [
        pytest.param({"enabled": True}, lambda config: None, True, id="asked_for"),
        pytest.param({}, lambda config: None, False, id="not_asked_for"),
        pytest.param(
            {"enabled": True},
            lambda config: setattr(config.parallel_config, "pipeline_parallel_size", 2),
            False,
            id="unsupported",
        ),
    ],
)
def test_it_is_set_up_where_it_is_asked_for_and_can_be(
    told: dict[str, Any], change: Callable[[VllmConfig], None], expected: bool
) -> None:
    config = engine_config()
    change(config)
    keep_kv_of_those_who_yield(ProximaSettings(swap=told), config)
    assert (config.kv_transfer_config is not None) is expected


def test_room_for_what_is_not_kept_is_pointed_out(caplog: pytest.LogCaptureFixture) -> None:
    config = engine_config()
    keep_kv_of_those_who_yield(ProximaSettings(swap={"host_bytes": 1 << 30}), config)
    assert config.kv_transfer_config is None
    assert "swap.host_bytes does nothing without swap.enabled" in caplog.text


def test_a_connector_of_the_users_own_stays(caplog: pytest.LogCaptureFixture) -> None:
    config = engine_config()
    config.kv_transfer_config = own = transfer_config(config, 1).__class__()
    keep_kv_of_those_who_yield(ProximaSettings(swap={"enabled": True}), config)
    assert config.kv_transfer_config is own
    assert "KV connector of your own" in caplog.text
