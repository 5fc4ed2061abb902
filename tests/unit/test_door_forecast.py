"""When a request would start: who really goes before it, by turns, classes and shares."""

from __future__ import annotations

import pytest

from proxima_config.api_keys import ApiKey
from proxima_config.hints import RequestClass
from proxima_config.settings import DoorSettings
from proxima_server.door.books import Books, EngineView, Entry
from proxima_server.door.classes import LEVELS
from proxima_server.door.deadlines import Deadlines
from proxima_server.door.fair_queue import Waiter
from proxima_server.door.size import Size
from proxima_server.door.turns import Turns
from proxima_server.door.visit import Visit

COST = 100
PER_S = 2
BACKLOG = 8
RUNNING = 4
VIEW = EngineView(RUNNING)
DEFAULT, PRIORITY, FLEX = RequestClass.DEFAULT, RequestClass.PRIORITY, RequestClass.FLEX


class Busy:
    """A door with an engine that computes four at once and has answered two a second for five minutes."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.books = Books(DoorSettings(engine_backlog=BACKLOG, max_queue_requests=10_000))
        self.turns = Turns(self.books, lambda: VIEW, lambda: self.now_s, kept=True, max_wait_s=1e9)
        for second in range(300):
            self.books.drain.pass_time(second, busy=True)
            self.books.drain.depart(PER_S, PER_S * COST)
        self.now_s = 300.0
        self.books.pass_time(self.now_s, VIEW)

    def join(self, count: int, tenant: str, request_class: RequestClass = DEFAULT, weight: float = 1) -> None:
        for _ in range(count):
            key = ApiKey(name=tenant, sha256="0" * 64)
            size = Size(sequences=1, prompt_bytes=COST, prompt_ids=0, declared_tokens=None)
            entry = self.entry(tenant, request_class, weight)
            self.turns.join(Visit(key, entry, size, Deadlines(None, None, None), self.now_s, 0))

    def entry(self, tenant: str, request_class: RequestClass = DEFAULT, weight: float = 1) -> Entry:
        return Entry(request_class, 1, COST, Waiter(tenant, weight, LEVELS[request_class], COST, self.now_s))

    def start_s(self, tenant: str, request_class: RequestClass = DEFAULT, weight: float = 1) -> float:
        entry = self.entry(tenant, request_class, weight)
        start_s = self.books.forecast_start_s(entry, self.turns.before(entry), VIEW)
        assert start_s is not None
        return start_s


@pytest.fixture
async def door() -> Busy:
    return Busy()


def about(requests: float) -> tuple[float, float]:
    """So many answers take no longer than the measured rate says, and not half as long."""
    return requests / PER_S * 0.5, requests / PER_S


async def test_a_flood_of_one_key_is_in_front_of_its_own_requests_and_not_of_others(door):
    door.join(400 + RUNNING, "flood")
    low, high = about(400)
    assert low < door.start_s("flood") < high
    assert door.start_s("small") == 0


async def test_a_key_waits_for_its_own_turns_and_for_as_many_of_the_other(door):
    door.join(400 + RUNNING, "flood")
    door.join(20, "small")
    low, high = about(2 * 20 + BACKLOG)
    assert low < door.start_s("small") < high


async def test_turns_go_by_weight(door):
    door.join(400 + RUNNING, "flood")
    door.join(20, "small", weight=4)
    low, high = about(20 + 20 / 4 + BACKLOG)
    assert low < door.start_s("small", weight=4) < high


async def test_more_urgent_classes_do_not_wait_for_others_and_less_urgent_ones_do(door):
    door.join(200 + RUNNING, "a")
    assert door.start_s("b", PRIORITY) == door.start_s("a", PRIORITY) == 0
    low, high = about(200)
    assert low < door.start_s("b", FLEX) < high
    door.join(100, "c", PRIORITY)
    low, high = about(100)
    assert low < door.start_s("d", DEFAULT) < about(100 + BACKLOG)[1]
    assert low < door.start_s("c", PRIORITY) < high
