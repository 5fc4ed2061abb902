"""The copies of --swap on CUDA, without CUDA: its kernels under Triton's interpreter, its streams as queues that run in
any order that its events allow."""

from __future__ import annotations

import sys
from contextlib import contextmanager, suppress

import pytest
import torch
from fake_lanes import FakeLane, OutOfMemoryInTestError
from hypothesis import given, settings
from hypothesis import strategies as st

from proxima_engine.swap.block_movers import IndexingMover, KernelMover, bytes_per_block, mover_for
from proxima_engine.swap.copier import block_rows
from proxima_engine.swap.lanes import HoldUps, TimedLane
from proxima_engine.swap.staged_copies import StagedCopies

BLOCKS, HOST_BLOCKS, PIECE_BLOCKS = 8, 6, 2
AHEAD_PIECE_BLOCKS = [2, 3]
# Blocks side by side; keys and values apart; heads outside of blocks; two of the kernel's blocks in one.
SHAPES = [(BLOCKS, 2, 4, 6), (2, BLOCKS, 4, 6), (2 * BLOCKS, 3, 8)]


def layers_of(shapes, dtype=torch.bfloat16):
    size = torch.empty(0, dtype=dtype).element_size()
    filled = [torch.randint(0, 256, (*shape[:-1], shape[-1] * size), dtype=torch.uint8) for shape in shapes]
    return [block_rows(layer.view(dtype), BLOCKS) for layer in filled]


def bits(layers, block):
    return b"".join(layer[block].contiguous().view(torch.uint8).numpy().tobytes() for layer in layers)


class Swap:
    """StagedCopies over two fake lanes, and what device and host should hold when all is done."""

    def __init__(self, make_mover, layers):
        self.layers = layers
        sizes = [PIECE_BLOCKS, PIECE_BLOCKS, *AHEAD_PIECE_BLOCKS]
        pieces = [torch.zeros(size, bytes_per_block(layers), dtype=torch.uint8) for size in sizes]
        self.pool = list(torch.zeros(HOST_BLOCKS, bytes_per_block(layers), dtype=torch.uint8))
        self.clock = [0.0]
        self.compute, self.bus = FakeLane(self.clock), FakeLane(self.clock)
        mover, ahead = make_mover(layers, pieces), len(AHEAD_PIECE_BLOCKS)
        self.copies = StagedCopies(mover, pieces, ahead, self.pool, self.bus, self.compute)
        self.device = {block: bits(layers, block) for block in range(BLOCKS)}
        self.host = {}

    def store(self, device_blocks, host_blocks, fails=None):
        pairs = list(zip(device_blocks, host_blocks, strict=True))
        # Not known where the copy fails: the connector loads nothing from there.
        before = {there: self.device.get(here) for here, there in pairs}
        for there in before:
            self.host.pop(there, None)
        with self.failing(fails):
            self.copies.store(self.compute, device_blocks, host_blocks)
        self.host |= {there: text for there, text in before.items() if text is not None}

    def load(self, device_blocks, host_blocks, fails=None):
        pairs = [(here, there) for here, there in zip(device_blocks, host_blocks, strict=True) if there in self.host]
        for here, _ in pairs:
            self.device.pop(here, None)
        with self.failing(fails):
            found = self.copies.load(self.compute, [here for here, _ in pairs], [there for _, there in pairs])
        self.device |= {here: self.host[there] for here, there in pairs}
        return found

    def fetch(self, host_blocks, fails=None):
        with self.failing(fails):
            return self.copies.fetch_ahead(host_blocks)

    @contextmanager
    def failing(self, lane):
        """Its next work is queued and reported as not."""
        self.compute.fails_next, self.bus.fails_next = lane == "compute", lane == "bus"
        try:
            yield
        finally:
            self.compute.fails_next = self.bus.fails_next = False

    def forward_writes(self, block, seed):
        """A step of the model, which the copies know nothing about."""
        generator = torch.Generator().manual_seed(seed)
        new = [
            torch.randint(0, 256, layer[block].view(torch.uint8).shape, generator=generator) for layer in self.layers
        ]

        def write():
            for layer, values in zip(self.layers, new, strict=True):
                layer[block].view(torch.uint8).copy_(values)

        self.compute.run(write)
        self.device[block] = b"".join(values.to(torch.uint8).numpy().tobytes() for values in new)

    def run_all(self, first="compute"):
        """One lane as far as it comes, then a step of the other."""
        leader, follower = (self.compute, self.bus) if first == "compute" else (self.bus, self.compute)
        while leader.advance() or follower.advance():
            pass

    def check(self):
        assert {block: bits(self.layers, block) for block in self.device} == self.device


# One piece, two and three.
block_ids = st.tuples(st.permutations(range(BLOCKS)), st.sampled_from([1, 4, 6])).map(
    lambda drawn: drawn[0][: drawn[1]]
)
lanes = st.sampled_from(["compute", "bus"])
moves = st.one_of(
    st.tuples(
        st.sampled_from(["store", "load"]),
        block_ids,
        st.tuples(st.permutations(range(HOST_BLOCKS)), st.sampled_from([None, None, "compute", "bus"])),
    ),
    st.tuples(
        st.just("fetch"),
        st.lists(st.integers(0, HOST_BLOCKS - 1), min_size=1, max_size=HOST_BLOCKS),
        st.sampled_from([None, None, "bus"]),
    ),
    st.tuples(st.just("forward"), st.integers(0, BLOCKS - 1), st.integers(0, 99)),
    st.tuples(st.just("advance"), st.lists(lanes, max_size=12), st.none()),
)


@pytest.mark.parametrize("make_mover", [KernelMover, IndexingMover])
@settings(max_examples=25)
@given(
    shapes=st.sampled_from([SHAPES[:1] * 2, SHAPES[1:2] * 2, SHAPES[2:]]),
    dtype=st.sampled_from([torch.bfloat16, torch.float32, torch.uint8, torch.float8_e4m3fn]),
    schedule=st.lists(moves, min_size=2, max_size=14),
    first=lanes,
)
def test_whatever_runs_first_the_bits_are_those_of_one_after_the_other(make_mover, shapes, dtype, schedule, first):
    """Stores and loads of several pieces between steps that write, what is fetched ahead of them, asked for again and
    stored anew, and copies that fail half way."""
    swap = Swap(make_mover, layers_of(shapes, dtype))
    for move, what, how in schedule:
        if move in ("store", "load"):
            with suppress(OutOfMemoryInTestError):
                getattr(swap, move)(what, how[0][: len(what)], how[1])
        elif move == "fetch":
            with suppress(OutOfMemoryInTestError):
                swap.fetch(what, how)
        elif move == "forward":
            swap.forward_writes(what, how)
        else:
            for lane in what:
                getattr(swap, lane).advance()
    swap.run_all(first)
    swap.check()
    kept = list(swap.host)
    swap.load(list(range(len(kept))), kept)
    swap.run_all(first)
    swap.check()


def test_a_piece_is_not_filled_under_a_copy_that_failed_half_way():
    """The load is reported as failed, and is still on its way into the piece that the next store wants."""
    swap = Swap(IndexingMover, layers_of(SHAPES[:1]))
    swap.store([0, 1], [0, 1])
    swap.run_all()
    with pytest.raises(OutOfMemoryInTestError):
        swap.load([2, 3], [0, 1], fails="bus")
    swap.store([4, 5, 6, 7], [2, 3, 4, 5])
    swap.run_all()
    swap.load([0, 1, 2, 3], [2, 3, 4, 5])
    swap.run_all()
    swap.check()


def test_the_forward_pass_is_held_up_by_a_store_of_more_than_two_pieces_only():
    """Two pieces wait for the bus without anybody waiting for them; a third needs the memory of the first."""
    swap = Swap(IndexingMover, layers_of(SHAPES[:1]))
    hold_ups = HoldUps()
    for blocks, held_up in (([0, 1, 2, 3], False), ([0, 1, 2, 3, 4], True)):
        with hold_ups.of(swap.compute):
            swap.store(blocks, list(range(len(blocks))))
        while swap.compute.advance():
            pass
        assert (hold_ups.take_seconds() == 0.0) is held_up
        while swap.bus.advance() or swap.compute.advance():
            pass
        hold_ups.take_seconds()


def test_what_was_fetched_ahead_does_not_wait_for_the_bus():
    swap = Swap(IndexingMover, layers_of(SHAPES[:1]))
    swap.store([0, 1, 2, 3], [0, 1, 2, 3])
    swap.run_all()
    assert swap.fetch([0, 1, 2]) == 3
    while swap.bus.advance():
        pass
    assert swap.load([4, 5, 6], [0, 1, 2]) == 3
    while swap.compute.advance():
        pass
    assert swap.bus.is_idle
    assert swap.compute.is_idle
    swap.check()


def test_a_part_that_was_fetched_ahead_is_scattered_and_the_rest_goes_the_normal_way():
    swap = Swap(IndexingMover, layers_of(SHAPES[:1]))
    swap.store([0, 1, 2, 3], [0, 1, 2, 3])
    swap.fetch([1, 3, 2])
    assert swap.load([4, 5, 6], [0, 3, 2]) == 2
    swap.run_all()
    swap.check()


def test_what_is_stored_anew_is_not_taken_from_what_was_fetched():
    """The host block is given to somebody else between fetch and load."""
    swap = Swap(IndexingMover, layers_of(SHAPES[:1]))
    swap.store([0, 1], [0, 1])
    swap.fetch([0, 1])
    swap.run_all()
    swap.store([2], [0])
    assert swap.load([4, 5], [0, 1]) == 1
    swap.run_all(first="bus")
    swap.check()


def test_there_is_room_for_a_part_only_and_the_last_fetch_has_it():
    swap = Swap(IndexingMover, layers_of(SHAPES[:1]))
    swap.store(list(range(6)), list(range(6)))
    assert swap.fetch(list(range(6))) == sum(AHEAD_PIECE_BLOCKS)
    assert swap.fetch([0, 1, 2]) == 0
    # The oldest piece goes first, though it is not empty yet.
    assert swap.fetch([5]) == 1
    assert swap.load([6, 7], [0, 5]) == 1
    swap.run_all()
    swap.check()


def test_a_fetch_waits_for_who_still_reads_what_was_fetched_before():
    swap = Swap(IndexingMover, layers_of(SHAPES[:1]))
    swap.store([0, 1, 2, 3, 6, 7], [0, 1, 2, 3, 4, 5])
    swap.fetch([0, 1])
    swap.run_all()
    assert swap.load([4, 5], [0, 1]) == 2
    # Both pieces are filled again before the load has run.
    swap.fetch([2, 3, 4, 5])
    swap.run_all(first="bus")
    swap.check()


def test_a_fetch_that_failed_half_way_is_not_found():
    swap = Swap(IndexingMover, layers_of(SHAPES[:1]))
    swap.store([0, 1], [0, 1])
    with pytest.raises(OutOfMemoryInTestError):
        swap.fetch([0, 1], fails="bus")
    assert swap.load([4, 5], [0, 1]) == 0
    swap.run_all()
    swap.check()


def test_without_room_to_fetch_ahead_the_rest_goes_its_way(monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "AHEAD_PIECE_BLOCKS", [])
    swap = Swap(IndexingMover, layers_of(SHAPES[:1]))
    swap.store([0, 1, 2], [0, 1, 2])
    assert swap.fetch([0, 1, 2]) == 0
    assert swap.load([4, 5, 6], [0, 1, 2]) == 0
    swap.run_all()
    swap.check()


def test_time_is_counted_once_and_when_it_is_over():
    swap = Swap(IndexingMover, layers_of(SHAPES[:1]))
    hold_ups = HoldUps()
    with hold_ups.of(swap.compute):
        swap.store([0, 1, 2], [0, 1, 2])
    assert hold_ups.take_seconds() == 0.0
    swap.run_all()
    assert hold_ups.take_seconds() == pytest.approx(0.002), "two gathers of a millisecond"
    assert hold_ups.take_seconds() == 0.0


def test_the_bus_works_only_while_blocks_are_under_way():
    clock = [0.0]
    compute, stream = FakeLane(clock), FakeLane(clock)
    bus = TimedLane(stream)
    for _ in range(3):
        compute.run(lambda: None)
    bus.wait(compute.mark())
    bus.run(lambda: None)
    assert not stream.advance(), "it waits"
    for lane in (compute, stream):
        while lane.advance():
            pass
    assert bus.take_seconds() == pytest.approx(0.001), "of four milliseconds"
    assert bus.take_seconds() == 0.0


def movers_choice(layers):
    pieces = [torch.zeros(PIECE_BLOCKS, bytes_per_block(layers), dtype=torch.uint8) for _ in range(2)]
    return mover_for(layers, pieces)


def test_kernels_are_chosen_and_change_nothing_when_they_are_tried():
    layers = layers_of(SHAPES)[:1]
    before = bits(layers, 0)
    assert isinstance(movers_choice(layers), KernelMover)
    assert bits(layers, 0) == before


def test_without_triton_blocks_are_indexed(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "proxima_kernels.block_copy", None)
    monkeypatch.delattr("proxima_kernels.block_copy", raising=False)
    assert isinstance(movers_choice(layers_of(SHAPES)[:1]), IndexingMover)
    assert "KV blocks are gathered by PyTorch's indexing" in caplog.text


def test_layers_of_unequal_blocks_are_indexed(caplog):
    layers = layers_of([SHAPES[0], (BLOCKS, 2, 5, 6)])
    assert isinstance(movers_choice(layers), IndexingMover)
    assert "bytes a block" in caplog.text
