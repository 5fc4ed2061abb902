"""Block demand by horizon: the closed form against drawn lengths, and where a newcomer fits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from step_views import BLOCK_SIZE

from proxima_engine.policy.demand import (
    HORIZONS,
    NO_DEMAND,
    Demand,
    Holding,
    PoolForecast,
    blocks_for,
    demand_of,
    demand_of_newcomer,
    growth_blocks,
    reserve,
)
from proxima_engine.policy.forecast import EDGES, Curve, Floats, LengthForecast, group_of

CAP = 4000
GROUP = group_of(100, CAP)
DRAWS = 60_000


def curve_of(*lengths: int) -> Curve:
    forecast = LengthForecast()
    for _ in range(200):
        for length in lengths:
            forecast.learn(GROUP, length, CAP)
    forecast.see_cap(CAP)
    forecast.look(np.zeros(0, dtype=np.int64))
    return forecast.curve(GROUP)


SPREAD, LONG = curve_of(20, 60, 150, 400, 1000), curve_of(1500, 3000)


def holding(blocks: int, output: int, cap: int, curve: Curve, *, unused: int = 0) -> Holding:
    """One whose last block has room for a number of tokens that are yet to come."""
    return Holding(
        blocks=blocks, tokens=BLOCK_SIZE * blocks - unused, output_tokens=output, cap_tokens=cap, curve=curve
    )


def last_horizon(holding: Holding) -> int:
    """Index of the last one before its cap; there, what it holds at its cap counts if that is more."""
    return int(np.searchsorted(HORIZONS, holding.cap_tokens - holding.output_tokens)) - 1


def drawn_blocks(holding: Holding, rng: np.random.Generator) -> Floats:
    """What one request really holds at each horizon, in many runs; shape (runs, horizons)."""
    left = np.interp(holding.output_tokens, EDGES, holding.curve.survival) * rng.uniform(size=DRAWS)
    length = np.interp(-left, -holding.curve.survival, EDGES)
    length = np.minimum(length, holding.cap_tokens)[:, None]
    held = [
        holding.blocks + growth_blocks(holding.tokens, holding.tokens + int(steps), BLOCK_SIZE) for steps in HORIZONS
    ]
    return np.where(holding.output_tokens + HORIZONS < length, held, 0.0)


@pytest.mark.parametrize(
    "holdings",
    [
        pytest.param([holding(10, 0, CAP, SPREAD)], id="newcomer"),
        pytest.param([holding(10, 300, CAP, SPREAD)], id="halfway"),
        pytest.param([holding(40, 0, 256, SPREAD)], id="cut-at-its-cap"),
        pytest.param(
            [
                holding(4 + number, 37 * number, 37 * number + 1000 * (1 + number % 4), curve, unused=number)
                for number, curve in enumerate([SPREAD, LONG] * 15)
            ],
            id="thirty",
        ),
    ],
)
def test_mean_and_spread_are_those_of_drawn_lengths(holdings: list[Holding]) -> None:
    rng = np.random.default_rng(20)
    drawn = sum((drawn_blocks(each, rng) for each in holdings), np.zeros((DRAWS, len(HORIZONS))))
    total = sum(demand_of(holdings, BLOCK_SIZE), NO_DEMAND)
    largest = total.mean.max()
    # At its last horizon before its cap a request counts with what it holds at the cap.
    as_drawn = np.full(len(HORIZONS), fill_value=True)
    as_drawn[[np.searchsorted(HORIZONS, each.cap_tokens - each.output_tokens) - 1 for each in holdings]] = False
    assert total.mean[as_drawn] == pytest.approx(drawn.mean(axis=0)[as_drawn], rel=0.03, abs=0.01 * largest)
    spread = np.sqrt(total.variance)[as_drawn]
    assert spread == pytest.approx(drawn.std(axis=0)[as_drawn], rel=0.05, abs=0.03 * largest)


@settings(deadline=None)
@given(blocks=st.integers(1, 40), generated=st.integers(0, 1500), remaining=st.integers(2, 2000))
def test_the_most_that_one_ever_holds_is_seen_at_some_horizon(blocks: int, generated: int, remaining: int) -> None:
    """Also where its cap lies between two of them."""
    demand = demand_of([holding(blocks, generated, generated + remaining, LONG)], BLOCK_SIZE)[0]
    assert demand.upper(1e9).max() == pytest.approx(blocks + blocks_for(remaining, BLOCK_SIZE), abs=1)


def test_each_request_has_its_own_demand() -> None:
    holdings = [holding(10, 0, CAP, SPREAD), holding(3, 200, 900, LONG), holding(1, 7, 8, SPREAD)]
    together = demand_of(holdings, BLOCK_SIZE)
    for each, demand in zip(holdings, together, strict=True):
        alone = demand_of([each], BLOCK_SIZE)[0]
        assert (alone.mean == demand.mean).all()
        assert (alone.variance == demand.variance).all()
    assert demand_of([], BLOCK_SIZE) == []


@settings(deadline=None)
@given(generated=st.integers(0, 5000), cap=st.integers(1, 5000))
def test_nobody_holds_a_block_from_the_declared_cap_on(generated: int, cap: int) -> None:
    demand = demand_of([holding(10, generated, cap, LONG)], BLOCK_SIZE)[0]
    ended = generated + HORIZONS >= cap
    assert not demand.mean[ended].any()
    assert not demand.variance[ended].any()
    assert (demand.mean[~ended] > 0).all()


@settings(deadline=None)
@given(unused=st.integers(0, BLOCK_SIZE - 1), generated=st.integers(0, 500))
def test_one_that_is_sure_to_run_takes_a_block_whenever_its_last_one_is_full(unused: int, generated: int) -> None:
    demand = demand_of([holding(10, generated, CAP, LONG, unused=unused)], BLOCK_SIZE)[0]
    near = HORIZONS <= 256
    grown = np.ceil((HORIZONS - unused) / BLOCK_SIZE).clip(0)
    assert demand.mean[near] == pytest.approx(10 + grown[near], rel=0.03)
    assert demand.upper(0) == pytest.approx(demand.mean)


def test_a_higher_confidence_takes_more_blocks_but_never_more_than_all_together_could_hold() -> None:
    demand = sum(demand_of([holding(10, 0, 1000, SPREAD)] * 20, BLOCK_SIZE), NO_DEMAND)
    low, high, certain = demand.upper(1.0), demand.upper(2.0), demand.upper(1e9)
    assert (low <= high).all()
    assert (high <= certain).all()
    assert (low < high)[(HORIZONS > 64) & (HORIZONS < 1000)].all()
    assert certain.max() == 20 * (10 + blocks_for(1000, BLOCK_SIZE))


@settings(deadline=None)
@given(blocks=st.integers(1, 60), cap=st.integers(1, 5000), unused=st.integers(0, BLOCK_SIZE - 1))
def test_a_newcomer_is_one_that_has_generated_nothing(blocks: int, cap: int, unused: int) -> None:
    for curve in (SPREAD, LONG):
        alike = holding(blocks, 0, cap, curve, unused=unused)
        short = demand_of_newcomer(blocks, alike.tokens, cap, curve, BLOCK_SIZE)
        long = demand_of([alike], BLOCK_SIZE)[0]
        assert short.mean == pytest.approx(long.mean)
        assert short.variance == pytest.approx(long.variance, abs=1e-9)
        assert short.most == pytest.approx(long.most)


# -- the pool ------------------------------------------------------------------------------------------------------

names = st.sampled_from("abcde")
sizes = st.integers(1, 4000)
happenings = st.lists(
    st.one_of(
        st.tuples(st.just("add"), names, sizes),
        st.tuples(st.just("remove"), names, st.just(0)),
        st.tuples(st.just("refresh"), names, sizes),
    ),
    max_size=40,
)


def some_demand(size: int) -> Demand:
    count = len(HORIZONS)
    return Demand(np.stack((np.linspace(size, 0, count), np.linspace(0, size / 3, count), np.full(count, 2.0 * size))))


@settings(deadline=None)
@given(happenings)
def test_the_total_is_the_sum_of_those_who_run(happenings: list[tuple[str, str, int]]) -> None:
    pool, parts = PoolForecast(), {}
    for what, name, size in happenings:
        if what == "add":
            parts[name] = some_demand(size)
            pool.add(name, parts[name])
        elif what == "remove":
            parts.pop(name, None)
            pool.remove(name)
        else:
            parts = {name: some_demand(size)}
            pool.refresh([name], parts[name].parts[None])
        total = sum(parts.values(), NO_DEMAND)
        assert pool.total.mean == pytest.approx(total.mean, abs=1e-6)
        assert pool.total.variance == pytest.approx(total.variance, abs=1e-6)
        assert pool.total.most == pytest.approx(total.most, abs=1e-6)
        assert (pool.total.variance >= 0).all()


def test_what_has_grown_since_comes_on_top() -> None:
    """Ten that certainly run on, asked again after 16 steps, against the same made anew."""
    block_size = 16
    before = [Holding(4, 64, 0, 4000, LONG) for _ in range(10)]
    after = [Holding(5, 80, 16, 4000, LONG) for _ in range(10)]
    pool = PoolForecast()
    pool.refresh("0123456789", np.stack([each.parts for each in demand_of(before, block_size)]))
    for _ in range(16):
        pool.step()
    anew = sum(demand_of(after, block_size), NO_DEMAND)
    near = HORIZONS <= 512
    assert pool.now(block_size).mean[near] == pytest.approx(anew.mean[near], rel=0.02)
    assert pool.now(block_size).most[near] == pytest.approx(anew.most[near], rel=0.02)
    assert pool.total.mean[0] < 0.85 * anew.mean[0], "without it this would show nothing"


def test_only_those_who_run_have_grown() -> None:
    pool, part = PoolForecast(), demand_of([Holding(4, 64, 0, 4000, LONG)], 16)[0]
    pool.refresh(["old", "gone"], np.stack((part.parts, part.parts)))
    for _ in range(16):
        pool.step()
    pool.add("new", part)
    pool.remove("gone")
    for _ in range(8):
        pool.step()
    assert pool.now(16).most[0] == pytest.approx(2 * part.most[0] + (24 + 8) / 16)
    for name in ("old", "new"):
        pool.remove(name)
    assert not pool.now(16).most.any()


def test_a_refresh_does_not_hold_on_to_what_it_was_given() -> None:
    names = ["a"]
    pool = PoolForecast()
    pool.refresh(names, some_demand(10).parts[None])
    names.clear()
    pool.remove("a")
    assert pool.total.mean == pytest.approx(NO_DEMAND.mean)


# -- reservations --------------------------------------------------------------------------------------------------


def started_at(demand: Demand, index: int) -> Demand:
    """The demand of one who starts at a horizon instead of now."""
    begun = HORIZONS - HORIZONS[index]
    parts = (demand.mean, demand.variance, demand.most)
    return Demand(np.stack([np.where(begun < 0, 0.0, np.interp(begun, HORIZONS, part)) for part in parts]))


def first_fitting(running: Demand, newcomer: Demand, z: float, blocks: float) -> int:
    for index in range(len(HORIZONS)):
        together = running + started_at(newcomer, index)
        if all(upper <= blocks for upper in together.upper(z)[index:]):
            return index
    return len(HORIZONS) - 1


holdings = st.builds(
    holding,
    blocks=st.integers(1, 60),
    output=st.integers(0, 1500),
    cap=st.integers(1, CAP),
    curve=st.sampled_from([SPREAD, LONG]),
    unused=st.integers(0, BLOCK_SIZE - 1),
)


@settings(deadline=None, max_examples=60)
@given(
    running=st.lists(holdings, max_size=12),
    newcomer=holdings,
    z=st.sampled_from([0.5, 1.28, 4.0]),
    spare=st.floats(0.0, 120.0),
)
def test_a_reservation_begins_at_the_earliest_horizon_from_which_all_later_ones_fit(
    running: list[Holding], newcomer: Holding, z: float, spare: float
) -> None:
    pool = sum(demand_of(running, BLOCK_SIZE), NO_DEMAND)
    demand = demand_of([newcomer], BLOCK_SIZE)[0]
    blocks = pool.upper(z).max() + spare
    index, reserved = reserve(pool, demand, z, blocks)
    assert index == first_fitting(pool, demand, z, blocks)
    assert reserved.mean == pytest.approx(started_at(demand, index).mean)
    assert reserved.variance == pytest.approx(started_at(demand, index).variance)


def test_those_who_run_may_exceed_the_pool_before_a_reservation_begins() -> None:
    pool = demand_of([holding(90, 0, 100, LONG)], BLOCK_SIZE)[0]
    newcomer = demand_of([holding(10, 0, 100, LONG)], BLOCK_SIZE)[0]
    blocks = 91.0
    assert pool.upper(1.28).max() > blocks
    index, _ = reserve(pool, newcomer, 1.28, blocks)
    assert index == first_fitting(pool, newcomer, 1.28, blocks)


def test_one_that_fits_at_once_reserves_from_now_on() -> None:
    newcomer = demand_of([holding(10, 0, CAP, SPREAD)], BLOCK_SIZE)[0]
    index, reserved = reserve(NO_DEMAND, newcomer, 1.28, 1000)
    assert index == 0
    assert reserved.mean == pytest.approx(newcomer.mean, rel=0.02, abs=0.3)
    assert reserved.upper(1.28) == pytest.approx(newcomer.upper(1.28), rel=0.02, abs=0.5)


def test_one_that_fits_when_another_ends_reserves_from_then_on() -> None:
    runs = demand_of([holding(90, 0, 96, LONG)], BLOCK_SIZE)[0]
    newcomer = demand_of([holding(20, 0, 96, LONG, unused=1)], BLOCK_SIZE)[0]
    index, reserved = reserve(runs, newcomer, 1.28, 100)
    assert HORIZONS[index] == 96
    assert not reserved.mean[:index].any()
    assert reserved.mean[index] == pytest.approx(20, abs=0.1)


def test_one_that_never_fits_reserves_as_late_as_possible() -> None:
    newcomer = demand_of([holding(200, 0, CAP, LONG)], BLOCK_SIZE)[0]
    index, _ = reserve(NO_DEMAND, newcomer, 1.28, 100)
    assert index == len(HORIZONS) - 1


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (32, 1), (33, 2)])
def test_tokens_fill_whole_blocks(tokens: int, blocks: int) -> None:
    assert blocks_for(tokens, 32) == blocks


@pytest.mark.parametrize(("before", "after", "blocks"), [(32, 33, 1), (33, 64, 0), (0, 65, 3), (40, 10, 0)])
def test_growth_counts_the_blocks_on_top(before: int, after: int, blocks: int) -> None:
    assert growth_blocks(before, after, 32) == blocks


@given(parts=st.lists(st.floats(0, 1e6), min_size=3 * len(HORIZONS), max_size=3 * len(HORIZONS)), z=st.floats(0.5, 20))
def test_the_upper_bound_is_its_formula_to_the_last_bit(parts: list[float], z: float) -> None:
    demand = Demand(np.array(parts).reshape(3, -1))
    before = demand.parts.copy()
    expected = np.minimum(demand.mean + z * np.sqrt(demand.variance), demand.most)
    assert np.array_equal(demand.upper(z), expected)
    assert np.array_equal(demand.parts, before), "asking must not change it"
