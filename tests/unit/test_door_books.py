"""Room in the queue, forecasts and the drain rate."""

from __future__ import annotations

import pytest
from fake_gateway import snapshot
from hypothesis import given
from hypothesis import strategies as st

from proxima_config.api_keys import ApiKey
from proxima_config.hints import RequestClass
from proxima_config.settings import DoorSettings, ProximaSettings
from proxima_server.door.auth import ANONYMOUS
from proxima_server.door.books import Books, EngineView, Entry, Load
from proxima_server.door.classes import LEVELS, class_of
from proxima_server.door.drain_rate import DrainRate
from proxima_server.door.fair_queue import Waiter
from proxima_server.door.view import engine_view

DEFAULT, PRIORITY, LONG, FLEX = (
    RequestClass.DEFAULT,
    RequestClass.PRIORITY,
    RequestClass.LONG,
    RequestClass.FLEX,
)


def books(**settings: int) -> Books:
    return Books(DoorSettings(**settings))


def entry(
    request_class: RequestClass = DEFAULT, tenant: str = "a", *, tokens: int = 10, sequences: int = 1, weight: float = 1
) -> Entry:
    return Entry(request_class, sequences, tokens, Waiter(tenant, weight, LEVELS[request_class], tokens, 0))


def fill(target: Books, count: int, place: str = "engine", **changes) -> list[Entry]:
    entries = [entry(**changes) for _ in range(count)]
    for each in entries:
        target.move(each, place)
    return entries


def test_the_queue_is_bounded_by_requests_that_wait_not_by_those_that_run():
    door = books(max_queue_requests=10)
    fill(door, 20)
    assert door.exceeded_bound(entry(), EngineView(running=12)) is None
    fill(door, 2)
    assert door.exceeded_bound(entry(), EngineView(running=12)) == "requests"
    assert door.exceeded_bound(entry(), EngineView(running=13)) is None


def test_the_queue_is_bounded_by_tokens():
    door = books(max_queue_tokens=100)
    fill(door, 9, "door", tokens=10)
    assert door.exceeded_bound(entry(tokens=10), EngineView(0)) is None
    assert door.exceeded_bound(entry(tokens=11), EngineView(0)) == "tokens"


def test_one_request_alone_is_never_too_long():
    assert books(max_queue_tokens=100).exceeded_bound(entry(tokens=100_000), EngineView(0)) is None


def test_several_sequences_count_as_several():
    door = books(max_queue_requests=10)
    fill(door, 1, "door", sequences=8)
    assert door.exceeded_bound(entry(sequences=2), EngineView(0)) is None
    assert door.exceeded_bound(entry(sequences=3), EngineView(0)) == "requests"


def test_less_urgent_ones_do_not_fill_the_queue_for_more_urgent_ones():
    door = books(max_queue_requests=10)
    fill(door, 10, "door", request_class=FLEX)
    assert door.exceeded_bound(entry(FLEX), EngineView(0)) == "requests"
    assert door.exceeded_bound(entry(DEFAULT), EngineView(0)) is None
    fill(door, 10, "door", request_class=DEFAULT)
    assert door.exceeded_bound(entry(DEFAULT), EngineView(0)) == "requests"
    assert door.exceeded_bound(entry(PRIORITY), EngineView(0)) is None


def test_one_tenant_cannot_lock_another_out():
    door = books(max_queue_requests=10)
    fill(door, 10, "door", tenant="flood")
    assert door.exceeded_bound(entry(tenant="flood"), EngineView(0)) == "requests"
    for _ in range(5):
        newcomer = entry(tenant="small")
        assert door.exceeded_bound(newcomer, EngineView(0)) is None
        door.move(newcomer, "door")
    assert door.exceeded_bound(entry(tenant="small"), EngineView(0)) == "requests"


MOVES = st.lists(
    st.tuples(st.integers(0, 9), st.sampled_from(["door", "engine", None]), st.integers(0, 2)), max_size=80
)


@given(MOVES)
def test_whatever_moves_the_books_end_at_zero(moves):
    door = books()
    entries = [entry(list(RequestClass)[n % 4], f"t{n % 3}", tokens=n + 1, sequences=n % 3 + 1) for n in range(10)]
    for number, place, level in moves:
        # Age makes a waiter more urgent while it stands in the books.
        entries[number].waiter.level = min(level, entries[number].waiter.level)
        door.move(entries[number], place)
        inside = [each for each in entries if each.place is not None]
        waiting = door.waiting(2, EngineView(0))
        assert waiting.sequences == sum(each.sequences for each in inside)
        assert waiting.tokens == pytest.approx(sum(each.prompt_tokens for each in inside))
    for each in entries:
        door.move(each, None)
    assert door.waiting(2, EngineView(0)).sequences == 0


def test_the_engine_takes_as_many_as_the_scheduler_needs_to_choose_from():
    door = books(engine_backlog=4)
    fill(door, 7)
    assert door.takes_more(1, EngineView(running=4))
    fill(door, 1)
    assert not door.takes_more(1, EngineView(running=4))
    assert door.takes_more(0, EngineView(running=4)), "a more urgent one does not wait behind them"


# -- drain rate ----------------------------------------------------------------------------------------------------


def measured(per_s: float, seconds: int, *, busy: bool = True, cost: float = 10) -> DrainRate:
    rate = DrainRate()
    rate.pass_time(0, busy=False)
    for step in range(1, seconds * 10 + 1):
        rate.pass_time(step / 10, busy=busy)
        for _ in range(round(step * per_s / 10) - round((step - 1) * per_s / 10)):
            rate.depart(1, cost)
    return rate


@pytest.mark.parametrize("per_s", [0.5, 3, 40])
def test_a_steady_rate_is_found(per_s):
    rate = measured(per_s, 200)
    assert rate.per_s() == pytest.approx(per_s, rel=0.1)
    assert per_s < 100 / rate.earliest_s(100, 1000) < 1.5 * per_s + 0.5


def test_a_few_departures_say_nothing():
    rate = measured(1, 7)
    assert rate.per_s() is None
    assert rate.earliest_s(1, 10) is None


def test_while_nobody_waits_the_rate_is_that_of_arrivals_and_does_not_count():
    assert measured(1, 100, busy=False).per_s() is None


def test_short_requests_behind_long_ones_and_long_prompts_behind_short_ones_are_not_taken_to_be_slow():
    seconds = measured(2, 200).earliest_s(100, 1000)
    assert measured(2, 200, cost=1000).earliest_s(100, 1000) == pytest.approx(seconds / 100)
    assert measured(2, 200).earliest_s(100, 100_000) == pytest.approx(seconds)


# -- forecast ------------------------------------------------------------------------------------------------------

NOBODY = Load()


def busy_books(per_s: float, waiting: int, running: int, **changes) -> Books:
    door = books(max_queue_requests=10_000)
    door.drain = measured(per_s, 300)
    fill(door, waiting + running, **changes)
    return door


def test_without_evidence_nothing_is_forecast():
    door = books()
    fill(door, 500)
    assert door.forecast_start_s(entry(), NOBODY, EngineView(running=10)) is None


def test_with_room_a_request_starts_now():
    assert busy_books(1, 0, 10).forecast_start_s(entry(), NOBODY, EngineView(running=10)) == 0


def test_the_forecast_is_on_the_early_side_of_what_the_rate_says():
    forecast_s = busy_books(2, 100, 10).forecast_start_s(entry(), NOBODY, EngineView(running=10))
    assert 30 < forecast_s < 50


def test_the_scheduler_may_know_that_it_goes_faster():
    door = busy_books(2, 100, 10)
    view = EngineView(running=10, estimated_start_s={"default": 70.0, "priority": 3.0})
    assert door.forecast_start_s(entry(), NOBODY, view) < 50
    view = EngineView(running=10, estimated_start_s={"default": 5.0})
    assert door.forecast_start_s(entry(), NOBODY, view) == 5
    told = door.forecast_start_s(entry(LONG), NOBODY, view)
    assert told == 5, "a class without an estimate starts like the default"


def test_who_waits_at_the_door_comes_on_top_of_what_the_scheduler_says():
    door = busy_books(2, 0, 10)
    fill(door, 100, "door")
    view = EngineView(running=10, estimated_start_s={"default": 5.0})
    assert 35 < door.forecast_start_s(entry(), Load(100, 1000, 1000), view) < 55


# -- what the engine says ------------------------------------------------------------------------------------------


def test_ranks_are_taken_together():
    one = snapshot(running=3, estimated_start_s={"default": 4.0})
    two = snapshot(rank=1, running=5, waiting={"blocks": {"default": 1, "flex": 2}}, estimated_start_s={"default": 2.0})
    view = engine_view(ProximaSettings(), {0: one, 1: two})
    assert (view.running, view.waiting, view.estimated_start_s) == (8, 5, {"default": 2.0})


def test_the_native_scheduler_reports_nothing_and_is_taken_to_be_full():
    settings = ProximaSettings(scheduler={"kind": "native"}, engine={"max_num_seqs": 12, "data_parallel_size": 2})
    view = engine_view(settings, {})
    assert (view.running, view.waiting) == (24, None)


# -- classes -------------------------------------------------------------------------------------------------------


def of_class(request_class: RequestClass) -> ApiKey:
    return ApiKey(name="k", sha256="0" * 64, request_class=request_class)


@pytest.mark.parametrize(
    ("key", "asked", "tokens", "found"),
    [
        pytest.param(ANONYMOUS, None, 10, DEFAULT, id="nobody_asks"),
        pytest.param(ANONYMOUS, PRIORITY, 10, PRIORITY, id="without_keys_everybody_may"),
        pytest.param(of_class(DEFAULT), PRIORITY, 10, DEFAULT, id="not_above_the_key"),
        pytest.param(of_class(DEFAULT), FLEX, 10, FLEX, id="below_the_key"),
        pytest.param(of_class(PRIORITY), None, 10, PRIORITY, id="the_key_s_own"),
        pytest.param(of_class(PRIORITY), DEFAULT, 10, DEFAULT, id="modest"),
        pytest.param(of_class(LONG), DEFAULT, 10, LONG, id="long_stays_long"),
        pytest.param(of_class(DEFAULT), None, 100, LONG, id="a_long_prompt"),
        pytest.param(of_class(PRIORITY), None, 100, PRIORITY, id="priority_stays_whatever_its_length"),
        pytest.param(of_class(FLEX), None, 100, FLEX, id="flex_stays_whatever_its_length"),
    ],
)
def test_class(key, asked, tokens, found):
    assert class_of(key, asked, tokens, 100) is found


def test_long_prompts_need_no_class_of_their_own():
    assert class_of(ANONYMOUS, None, 10_000, 0) is DEFAULT
