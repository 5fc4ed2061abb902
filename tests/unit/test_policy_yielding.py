"""Who gives up its blocks when there are not enough: the one whose loss costs least."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from step_views import running

from proxima_engine.policy.view import RunningRequest
from proxima_engine.policy.yielding import MINIMUM_SERVICE_TOKENS, Candidate, victims

SERVED = MINIMUM_SERVICE_TOKENS


def candidate(
    name: str,
    *,
    blocks: int = 10,
    growth: int = 1,
    output: int = SERVED,
    served: int | None = None,
    late: bool = False,
    started_s: float = 0.0,
    priority: int = 0,
) -> Candidate:
    request = running(name, 0, blocks, growth=growth, output=output, started_s=started_s, cap=10_000, priority=priority)
    return Candidate(request, late, output if served is None else served)


def alone(request: RunningRequest) -> int:
    """Nobody shares a block with it."""
    return request.blocks + request.growth_blocks


def order(*candidates: Candidate) -> list[str]:
    """All but the last one, in the order in which they yield."""
    return [request.request_id for request in victims(candidates, 1_000_000, alone)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(
            candidate("low", priority=1, served=1, started_s=0),
            candidate("high", output=0, late=True, started_s=9),
            id="lower-priority",
        ),
        pytest.param(
            candidate("silent", output=0, started_s=0),
            candidate("streams", late=True, started_s=9),
            id="no-token-yet",
        ),
        pytest.param(
            candidate("served", served=SERVED, started_s=0),
            candidate("new", served=SERVED - 1, late=True, started_s=9),
            id="minimum-service",
        ),
        pytest.param(
            candidate("late", late=True, started_s=0),
            candidate("fluent", started_s=9),
            id="missed-its-target",
        ),
        pytest.param(candidate("last", started_s=9), candidate("before", started_s=8), id="started-last"),
        pytest.param(candidate("a"), candidate("b"), id="by-name"),
    ],
)
def test_the_one_whose_loss_costs_least_yields_first(first: Candidate, second: Candidate) -> None:
    keeps = candidate("keeps", output=5, served=5, started_s=-1)
    assert order(first, second, keeps) == order(keeps, second, first)
    assert order(first, second, keeps) == [first.request.request_id, second.request.request_id]


def test_one_without_a_token_yields_although_it_has_had_no_service() -> None:
    assert order(candidate("streams"), candidate("silent", output=0)) == ["silent"]


def test_one_that_resumed_is_served_again_before_it_yields_again() -> None:
    """It has 500 tokens in all, yet only a few of them since it resumed."""
    resumed = candidate("resumed", output=500, served=3, late=True, started_s=9)
    assert order(resumed, candidate("fluent")) == ["fluent"]


def test_the_protected_yield_when_there_is_nobody_else() -> None:
    assert order(candidate("a", served=1, started_s=1), candidate("b", served=1, started_s=2)) == ["b"]


def test_no_more_yield_than_it_takes() -> None:
    candidates = [candidate(name, blocks=4, growth=1, started_s=number) for number, name in enumerate("abcd")]
    yielded = [len(victims(candidates, missing, alone)) for missing in (0, 1, 5, 6, 10, 11)]
    assert yielded == [0, 1, 1, 2, 2, 3]


def test_what_others_hold_too_is_not_freed() -> None:
    candidates = [candidate(name, blocks=10, growth=0, started_s=number) for number, name in enumerate("abc")]
    chosen = victims(candidates, 3, lambda request: request.blocks - 8)
    assert [request.request_id for request in chosen] == ["c", "b"]


def test_alone_in_the_pool_nobody_yields() -> None:
    assert order(candidate("a", output=0)) == []
    assert order() == []


candidates = st.lists(
    st.builds(
        candidate,
        name=st.uuids().map(str),
        blocks=st.integers(1, 30),
        growth=st.integers(0, 3),
        output=st.integers(0, 200),
        late=st.booleans(),
        started_s=st.floats(0, 100),
        priority=st.integers(0, 1),
    ),
    max_size=12,
    unique_by=lambda each: each.request.request_id,
)


@settings(deadline=None)
@given(candidates=candidates, missing=st.integers(0, 400))
def test_enough_blocks_are_freed_unless_only_one_is_left(candidates: list[Candidate], missing: int) -> None:
    chosen = victims(candidates, missing, alone)
    assert len(chosen) < len(candidates) or not chosen
    assert len({request.request_id for request in chosen}) == len(chosen)
    freed = [request.blocks + request.growth_blocks for request in chosen]
    assert sum(freed) >= missing or len(chosen) == max(0, len(candidates) - 1)
    # None of them in vain.
    assert not chosen or sum(freed[:-1]) < missing


@settings(deadline=None)
@given(candidates=candidates, missing=st.integers(0, 400), seed=st.randoms(use_true_random=False))
def test_the_choice_does_not_depend_on_the_order_in_which_they_run(candidates, missing, seed) -> None:
    shuffled = list(candidates)
    seed.shuffle(shuffled)
    assert victims(candidates, missing, alone) == victims(shuffled, missing, alone)


candidates = st.lists(
    st.builds(
        candidate,
        st.text("abc", min_size=1, max_size=4),
        blocks=st.integers(0, 9),
        output=st.sampled_from([0, 5, SERVED, 2 * SERVED]),
        served=st.sampled_from([0, SERVED - 1, SERVED]),
        late=st.booleans(),
        started_s=st.integers(0, 3),
        priority=st.integers(0, 2),
    ),
    max_size=12,
    unique_by=lambda each: each.request.request_id,
)


@given(candidates=candidates, missing=st.integers(0, 60))
def test_those_who_yield_are_the_first_of_all_in_order(candidates: list[Candidate], missing: int) -> None:
    """However many are taken, they are the beginning of the whole order, and no more than it takes."""
    chosen = [each.request_id for each in victims(candidates, missing, alone)]
    everybody = order(*candidates)
    assert chosen == everybody[: len(chosen)]
    blocks = {each.request.request_id: each.request.blocks + each.request.growth_blocks for each in candidates}
    assert sum(blocks[each] for each in chosen) >= missing or chosen == everybody
    assert not chosen or sum(blocks[each] for each in chosen[:-1]) < missing
