"""The order in which waiting requests are considered: bands, costs and the passing of time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from step_views import TTFT_S, waiting

from proxima_config.hints import RequestClass
from proxima_engine.policy.urgency import CLASS_LEVEL, COST_WEIGHT, GROWTH, Band, UrgencyQueue
from proxima_engine.policy.view import WaitingRequest

MAX_WAIT_S = 10.0
A_MOMENT = 1e-6


@pytest.fixture
def queue() -> UrgencyQueue:
    return UrgencyQueue(MAX_WAIT_S)


def names(queue: UrgencyQueue) -> list[str]:
    return [request.request_id for _, request in queue.in_order()]


def band_of(queue: UrgencyQueue, name: str) -> Band:
    return next(band for band, request in queue.in_order() if request.request_id == name)


def test_bands_go_one_after_the_other(queue: UrgencyQueue) -> None:
    now_s = 100.0
    queue.add(waiting("on-time", 99.5, 1), 1.0, now_s)
    queue.add(waiting("late", 95, 1), 1.0, now_s)
    queue.add(waiting("overdue", 80, 1), 1.0, now_s)
    queue.add(waiting("resumed", 99.9, 1, output=5), 1.0, now_s)
    assert [(band, request.request_id) for band, request in queue.in_order()] == [
        (Band.RESUMED, "resumed"),
        (Band.OVERDUE, "overdue"),
        (Band.ON_TIME, "on-time"),
        (Band.LATE, "late"),
    ]


def test_those_on_time_go_cheapest_first_once_somebody_has_missed_the_target(queue: UrgencyQueue) -> None:
    now_s = 100.0
    for name, arrival_s, cost in (("dear", 99.1, 30.0), ("cheap", 99.3, 1.0), ("middling", 99.2, 5.0)):
        queue.add(waiting(name, arrival_s, 1), cost, now_s)
    assert names(queue) == ["dear", "middling", "cheap"]
    queue.add(waiting("late", 95, 1), 1.0, now_s)
    assert names(queue) == ["cheap", "middling", "dear", "late"]
    queue.remove("late")
    assert names(queue) == ["dear", "middling", "cheap"]


def test_until_then_they_go_by_when_they_have_to_start_the_costly_later(queue: UrgencyQueue) -> None:
    now_s = 100.0
    queue.add(waiting("first", 99.0, 1), 1.0, now_s)
    queue.add(waiting("pressing", 99.5, 1), 1.0, now_s, 100.5)
    queue.add(waiting("costly", 99.1, 1), 1.0, now_s, pool_s=0.9 / COST_WEIGHT)
    queue.add(waiting("last", 99.9, 1), 1.0, now_s)
    assert names(queue) == ["pressing", "first", "last", "costly"]


def test_equal_costs_go_in_order_of_arrival_and_then_by_name(queue: UrgencyQueue) -> None:
    for name, arrival_s in (("c", 0.5), ("b", 0.2), ("a", 0.5)):
        queue.add(waiting(name, arrival_s, 1), 7.0, 1.0)
    assert names(queue) == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("seconds_ago", "output", "band"),
    [
        pytest.param(MAX_WAIT_S - 1, 0, Band.LATE, id="late"),
        pytest.param(MAX_WAIT_S + 9, 0, Band.OVERDUE, id="overdue"),
        pytest.param(0, 5, Band.RESUMED, id="resumed"),
    ],
)
def test_all_others_go_in_order_of_arrival_whatever_they_cost(
    queue: UrgencyQueue, seconds_ago: float, output: int, band: Band
) -> None:
    now_s = 100.0
    for name, after_s, cost in (("third", 0.3, 1.0), ("first", 0.1, 9.0), ("second", 0.2, 5.0)):
        queue.add(waiting(name, now_s - seconds_ago + after_s, 1, output=output), cost, now_s)
    assert {band for band, _ in queue.in_order()} == {band}
    assert names(queue) == ["first", "second", "third"]


def test_those_who_turned_late_and_those_who_came_late_go_in_order_of_arrival_together(queue: UrgencyQueue) -> None:
    queue.add(waiting("second", 2, 1, ttft_s=3), 1.0, 2.0)
    queue.add(waiting("first", 1, 1, ttft_s=4.5), 100.0, 2.0)
    queue.advance(5.6)
    queue.add(waiting("third", 3, 1), 1.0, 5.6)
    queue.add(waiting("zeroth", 0, 1), 50.0, 5.6)
    assert {band for band, _ in queue.in_order()} == {Band.LATE}
    assert names(queue) == ["zeroth", "first", "second", "third"]


def test_priorities_go_strictly_first(queue: UrgencyQueue) -> None:
    now_s = 100.0
    queue.add(waiting("overdue-1", 0, 1, priority=1), 1.0, now_s)
    queue.add(waiting("resumed-1", 99, 1, priority=1, output=3), 1.0, now_s)
    queue.add(waiting("late-0", 95, 1), 99.0, now_s)
    queue.add(waiting("dear-0", 99.5, 1), 99.0, now_s)
    queue.add(waiting("late-minus-1", 95, 1, priority=-1), 99.0, now_s)
    assert names(queue) == ["late-minus-1", "dear-0", "late-0", "resumed-1", "overdue-1"]


class TestClasses:
    def test_go_one_after_the_other_and_in_each_those_on_time_first(self, queue: UrgencyQueue) -> None:
        now_s = 100.0
        for request_class in reversed(RequestClass):
            queue.add(waiting(f"{request_class}-late", 95, 1, request_class=request_class), 1.0, now_s)
            queue.add(waiting(f"{request_class}-on-time", 99, 1, request_class=request_class), 1.0, now_s)
        assert names(queue) == [
            "priority-on-time", "priority-late", "default-on-time", "long-on-time", "default-late", "long-late",
            "flex-on-time", "flex-late",
        ]  # fmt: skip

    @pytest.mark.parametrize("request_class", RequestClass)
    def test_none_waits_longer_than_the_bound_for_another(
        self, queue: UrgencyQueue, request_class: RequestClass
    ) -> None:
        queue.add(waiting("old", 0, 1, request_class=request_class), 1.0, 0.0)
        queue.add(waiting("new", MAX_WAIT_S, 1, request_class=RequestClass.PRIORITY), 1.0, MAX_WAIT_S)
        queue.advance(MAX_WAIT_S)
        assert names(queue) == ["old", "new"]

    def test_do_not_invert_priorities(self, queue: UrgencyQueue) -> None:
        queue.add(waiting("b", 0, 1, priority=1, request_class=RequestClass.PRIORITY), 1.0, 0.0)
        queue.add(waiting("a", 0, 1, priority=0, request_class=RequestClass.FLEX), 1.0, 0.0)
        assert names(queue) == ["a", "b"]

    def test_long_ones_are_told_apart(self, queue: UrgencyQueue) -> None:
        queue.add(waiting("long", 0, 1, request_class=RequestClass.LONG), 1.0, 0.0)
        assert queue.others_than_long == 0
        queue.add(waiting("other", 0, 1), 1.0, 0.0)
        assert queue.others_than_long == 1
        queue.remove("long")
        assert queue.others_than_long == 1


def test_one_whose_last_token_cannot_come_in_time_any_more_is_late(queue: UrgencyQueue) -> None:
    queue.add(waiting("a", 0, 1), 1.0, 0.0, start_by_s=0.5)
    assert not queue.advance(0.5)
    assert queue.advance(0.5 + A_MOMENT)
    assert band_of(queue, "a") is Band.LATE


class TestTime:
    def test_a_request_is_late_once_its_target_has_passed(self, queue: UrgencyQueue) -> None:
        queue.add(waiting("a", 5, 1), 1.0, 5.0)
        assert not queue.advance(5 + TTFT_S)
        assert band_of(queue, "a") is Band.ON_TIME
        assert queue.advance(5 + TTFT_S + A_MOMENT)
        assert band_of(queue, "a") is Band.LATE

    def test_a_late_one_lets_those_on_time_pass_until_it_is_overdue(self, queue: UrgencyQueue) -> None:
        queue.add(waiting("old", 0, 1), 1.0, 0.0)
        queue.add(waiting("new", MAX_WAIT_S - 1, 1), 99.0, MAX_WAIT_S - 1)
        queue.advance(MAX_WAIT_S - 1)
        assert names(queue) == ["new", "old"]
        queue.advance(MAX_WAIT_S - A_MOMENT)
        assert names(queue) == ["new", "old"]
        assert queue.advance(MAX_WAIT_S + A_MOMENT)
        assert names(queue) == ["old", "new"]
        assert band_of(queue, "old") is Band.OVERDUE

    @pytest.mark.parametrize(
        "added_s",
        [
            pytest.param(0.0, id="added-on-time"),
            pytest.param(TTFT_S + 1, id="added-late"),
            pytest.param(MAX_WAIT_S, id="added-at-the-bound"),
        ],
    )
    def test_a_request_is_overdue_as_soon_as_the_bound_is_reached(self, queue: UrgencyQueue, added_s: float) -> None:
        queue.add(waiting("a", 0, 1), 1.0, added_s)
        queue.advance(MAX_WAIT_S)
        assert band_of(queue, "a") is Band.OVERDUE

    def test_a_target_beyond_the_bound_does_not_outlast_it(self, queue: UrgencyQueue) -> None:
        queue.add(waiting("a", 0, 1, ttft_s=2 * MAX_WAIT_S), 1.0, 0.0)
        queue.advance(MAX_WAIT_S + A_MOMENT)
        assert band_of(queue, "a") is Band.OVERDUE
        assert not queue.advance(3 * MAX_WAIT_S)
        assert band_of(queue, "a") is Band.OVERDUE

    def test_a_resumed_one_stays_first_however_long_it_waits(self, queue: UrgencyQueue) -> None:
        queue.add(waiting("resumed", 0, 1, output=5), 1.0, 0.0)
        queue.add(waiting("a", 0, 1), 1.0, 0.0)
        queue.advance(5 * MAX_WAIT_S)
        assert names(queue) == ["resumed", "a"]
        assert band_of(queue, "resumed") is Band.RESUMED

    def test_one_that_left_does_not_turn_up_again(self, queue: UrgencyQueue) -> None:
        queue.add(waiting("a", 0, 1), 1.0, 0.0)
        queue.remove("a")
        assert not queue.advance(5 * MAX_WAIT_S)
        assert names(queue) == []

    def test_one_that_started_and_yielded_is_resumed_and_no_longer_late(self, queue: UrgencyQueue) -> None:
        queue.add(waiting("a", 0, 1), 1.0, 0.0)
        queue.remove("a")
        queue.add(waiting("a", 0, 1, output=8), 1.0, 1.0)
        queue.advance(5 * MAX_WAIT_S)
        assert band_of(queue, "a") is Band.RESUMED

    def test_a_name_that_is_used_again_has_a_target_of_its_own(self, queue: UrgencyQueue) -> None:
        queue.add(waiting("a", 0, 1), 1.0, 0.0)
        queue.remove("a")
        queue.add(waiting("a", 50, 1), 1.0, 50.0)
        queue.advance(50.5)
        assert band_of(queue, "a") is Band.ON_TIME


def test_adding_again_replaces(queue: UrgencyQueue) -> None:
    queue.add(waiting("a", 0, 1), 9.0, 0.0)
    queue.add(waiting("b", 0, 1), 5.0, 0.0)
    queue.add(waiting("a", 0, 7), 1.0, 0.0)
    assert [(request.request_id, request.blocks_at_most) for _, request in queue.in_order()] == [("a", 7), ("b", 1)]
    assert len(queue) == 2


def test_removing_somebody_unknown_changes_nothing(queue: UrgencyQueue) -> None:
    queue.add(waiting("a", 0, 1), 1.0, 0.0)
    queue.remove("b")
    assert names(queue) == ["a"]


def test_clearing_leaves_nobody(queue: UrgencyQueue) -> None:
    queue.add(waiting("a", 0, 1), 1.0, 0.0)
    queue.clear()
    assert (len(queue), names(queue), queue.advance(99.0)) == (0, [], False)


def section_of(band: Band, request: WaitingRequest) -> tuple[int, int, Band]:
    level = CLASS_LEVEL[request.request_class] if band in (Band.ON_TIME, Band.LATE) else -1
    return request.priority, level, band


happenings = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"),
            st.sampled_from("abcdefgh"),
            st.floats(0, 15),
            st.floats(0, 100),
            st.sampled_from([0, 0, 0, 4]),
            st.sampled_from([-1, 0, 0, 3]),
            st.sampled_from(RequestClass),
        ),
        st.tuples(st.just("remove"), st.sampled_from("abcdefgh")),
        st.tuples(st.just("pass"), st.floats(0, 6)),
        st.tuples(st.just("clear")),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(happenings)
def test_everybody_who_waits_is_named_once_and_in_order_whatever_happens(happenings: list[tuple]) -> None:
    queue, waits, now_s = UrgencyQueue(MAX_WAIT_S), {}, 20.0
    for what, *values in happenings:
        if what == "add":
            name, ago_s, cost, output, priority, request_class = values
            arrival_s = now_s - ago_s
            waits[name] = waiting(name, arrival_s, 1, output=output, priority=priority, request_class=request_class)
            queue.add(waits[name], cost, now_s)
        elif what == "remove":
            waits.pop(values[0], None)
            queue.remove(values[0])
        elif what == "pass":
            now_s += values[0]
            queue.advance(now_s)
        else:
            waits.clear()
            queue.clear()
        listed = list(queue.in_order())
        assert sorted(request.request_id for _, request in listed) == sorted(waits)
        assert len(queue) == len(waits)
        assert all((name in queue) == (name in waits) for name in "abcdefgh")
        assert all(request is waits[request.request_id] for _, request in listed)
        sections = [section_of(band, request) for band, request in listed]
        assert sections == sorted(sections)
        late = [(*section_of(band, request), request.arrival_s) for band, request in listed if band is Band.LATE]
        assert late == sorted(late)
        long = sum(request.request_class is RequestClass.LONG for _, request in listed)
        assert queue.others_than_long == len(listed) - long
        assert all(
            now_s - request.arrival_s <= MAX_WAIT_S + A_MOMENT
            for band, request in listed
            if band in (Band.ON_TIME, Band.LATE)
        )


class TestABoundThatGrows:
    """A queue so long that in order of arrival, too, the last would wait for longer than the bound."""

    @pytest.fixture(autouse=True)
    def two_that_come_together(self, queue: UrgencyQueue) -> None:
        for name in ("first", "second"):
            queue.add(waiting(name, 0, 1), 1.0, 0.0)
            queue.queue_up(name, 5.0)

    def start(self, queue: UrgencyQueue, now_s: float, work: float) -> None:
        """Another one comes and starts at once."""
        queue.add(waiting("passes", now_s, 1), 1.0, now_s)
        queue.queue_up("passes", work)
        queue.start("passes")
        queue.remove("passes")

    def test_nobody_is_overdue_before_it_would_have_started_in_order_of_arrival(self, queue: UrgencyQueue) -> None:
        queue.advance(3 * MAX_WAIT_S)
        assert band_of(queue, "first") is Band.LATE
        assert queue.bound_s("first") == math.inf

    def test_it_is_so_many_times_the_wait_in_order_of_arrival(self, queue: UrgencyQueue) -> None:
        now_s = 2 * MAX_WAIT_S
        self.start(queue, now_s, work=4.0)
        queue.advance(now_s)
        assert queue.bound_s("first") == GROWTH * now_s
        assert queue.bound_s("second") == math.inf
        queue.advance(GROWTH * now_s - A_MOMENT)
        assert {band for band, _ in queue.in_order()} == {Band.LATE}
        queue.advance(GROWTH * now_s)
        assert band_of(queue, "first") is Band.OVERDUE
        assert band_of(queue, "second") is Band.LATE

    def test_it_is_as_set_where_order_of_arrival_is_quicker(self, queue: UrgencyQueue) -> None:
        self.start(queue, 1.0, work=20.0)
        queue.advance(1.0)
        assert queue.bound_s("first") == queue.bound_s("second") == MAX_WAIT_S
        queue.advance(MAX_WAIT_S)
        assert {band for band, _ in queue.in_order()} == {Band.OVERDUE}

    def test_one_whose_arrival_was_not_seen_has_the_bound_that_is_set(self, queue: UrgencyQueue) -> None:
        queue.add(waiting("told-late", 0, 1), 1.0, 5.0)
        queue.advance(MAX_WAIT_S)
        assert band_of(queue, "told-late") is Band.OVERDUE
        assert band_of(queue, "first") is Band.LATE

    def test_a_bound_of_zero_stays_order_of_arrival(self) -> None:
        queue = UrgencyQueue(0.0)
        for name, arrival_s in (("first", 1.0), ("second", 2.0)):
            queue.add(waiting(name, arrival_s, 1), 1.0, arrival_s)
            queue.queue_up(name, 1.0)
            assert band_of(queue, name) is Band.OVERDUE
        assert names(queue) == ["first", "second"]


def test_priorities_that_nobody_has_any_more_are_forgotten(queue: UrgencyQueue) -> None:
    """As where a client takes the time of day for a priority."""
    for priority in range(10_000):
        queue.add(waiting(f"r{priority}", 0, 1, priority=priority), 1.0, 0.0)
        queue.advance(0.0)
        queue.remove(f"r{priority}")
    assert not queue._sections
