"""How far a queue in order of arrival would have come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxima_engine.policy.arrival_order import ArrivalOrder


def order(**work: float) -> ArrivalOrder:
    """Requests that arrive one after the other."""
    arrivals = ArrivalOrder()
    for number, (name, each) in enumerate(work.items()):
        arrivals.arrive(name, (0, float(number), name), each)
    return arrivals


def test_nobody_would_have_started_while_nobody_starts() -> None:
    assert order(a=1, b=1).advance() == []


def test_a_small_one_that_passes_shows_that_the_first_would_have_started() -> None:
    arrivals = order(big=10, small=1)
    arrivals.start("small")
    assert arrivals.advance() == ["big"]
    assert "big" not in arrivals


def test_as_much_work_would_have_started_as_did() -> None:
    arrivals = order(a=4, b=4, c=1, d=1, e=1, f=1, g=1)
    for name in "cdef":
        arrivals.start(name)
    # The four together are as much as the first.
    assert arrivals.advance() == ["a"]
    arrivals.start("g")
    assert arrivals.advance() == ["b"]


def test_who_has_started_is_not_named() -> None:
    arrivals = order(a=1, b=1)
    arrivals.start("a")
    arrivals.start("b")
    assert arrivals.advance() == []
    assert "b" not in arrivals


def test_one_who_leaves_holds_nobody_up() -> None:
    arrivals = order(big=100, a=1, b=1)
    arrivals.leave("big")
    arrivals.start("b")
    assert arrivals.advance() == ["a"]


def test_one_who_leaves_after_it_would_have_started_makes_room() -> None:
    arrivals = order(a=3, b=1, c=1)
    arrivals.start("c")
    assert arrivals.advance() == ["a"]
    arrivals.leave("a")
    assert arrivals.advance() == ["b"]


def test_a_name_that_is_used_again_goes_to_the_end() -> None:
    arrivals = order(a=1, b=1)
    arrivals.leave("a")
    arrivals.arrive("a", (0, 9.0, "a"), 1)
    arrivals.start("b")
    assert arrivals.advance() == []
    assert "a" in arrivals


events = st.lists(st.tuples(st.sampled_from(["arrive", "start"]), st.integers(0, 9), st.integers(1, 20)))


@given(events)
def test_as_much_work_would_have_started_as_did_and_part_of_one_more(events) -> None:
    arrivals, came, waits, named = ArrivalOrder(), {}, set(), set()
    started = 0
    for number, (what, index, work) in enumerate(events):
        name = f"r{number:03}"
        if what == "arrive":
            arrivals.arrive(name, (0, float(number), name), work)
            came[name] = work
            waits.add(name)
        elif waits:
            name = sorted(waits)[index % len(waits)]
            arrivals.start(name)
            waits.remove(name)
            started += came[name]
        for found in arrivals.advance():
            assert found in waits - named
            named.add(found)
        would = [name for name in came if name not in arrivals]
        assert would == list(came)[: len(would)], "in order of arrival"
        work_of = [came[name] for name in would]
        assert sum(work_of[:-1]) < started or not would
        assert sum(work_of) >= started
