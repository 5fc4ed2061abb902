"""Turns between tenants: weights, urgency, age."""

from __future__ import annotations

import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from proxima_server.door.fair_queue import FairQueue, Waiter

NEVER = math.inf
COSTS = st.integers(1, 1000)


def waiter(tenant: str, cost: float = 1, *, weight: float = 1, level: int = 1, arrived_s: float = 0) -> Waiter:
    return Waiter(tenant, weight, level, cost, arrived_s)


def served(queue: FairQueue, count: int, now_s: float = 0) -> list[Waiter]:
    gone = []
    for _ in range(count):
        head = queue.head(now_s)
        assert head is not None
        queue.pop(head)
        gone.append(head)
    return gone


@given(
    weights=st.lists(st.floats(0.1, 10), min_size=2, max_size=4),
    costs=st.lists(COSTS, min_size=200, max_size=200),
    turns=st.integers(20, 150),
)
def test_tenants_that_always_wait_share_by_weight(weights, costs, turns):
    """The bound of start-time fair queueing: normalised service of any two differs by one request of each at most."""
    queue = FairQueue(3, NEVER)
    tenants = {f"t{number}": weight for number, weight in enumerate(weights)}
    for number, cost in enumerate(costs):
        name = f"t{number % len(tenants)}"
        queue.push(waiter(name, cost, weight=tenants[name]))
    got: Counter[str] = Counter()
    waiting = Counter({name: sum(1 for n in range(200) if f"t{n % len(tenants)}" == name) for name in tenants})
    for gone in served(queue, turns):
        got[gone.tenant] += gone.cost
        waiting[gone.tenant] -= 1
        if not all(waiting[name] > 0 for name in tenants):
            break
        service = {name: got[name] / weight for name, weight in tenants.items()}
        most = max(service, key=service.__getitem__)
        least = min(service, key=service.__getitem__)
        assert service[most] - service[least] <= 1000 / tenants[most] + 1000 / tenants[least] + 1e-6


@given(st.lists(st.tuples(st.sampled_from("abc"), COSTS, st.integers(0, 2)), max_size=60), st.data())
def test_everybody_goes_exactly_once_and_more_urgent_first(arrivals, data):
    queue = FairQueue(3, NEVER)
    pushed = [waiter(tenant, cost, level=level) for tenant, cost, level in arrivals]
    for each in pushed:
        queue.push(each)
    left = [each for each in pushed if data.draw(st.booleans())]
    for each in left:
        queue.remove(each)
        queue.remove(each)
    staying = [each for each in pushed if each not in left]
    assert len(queue) == len(staying)
    gone = served(queue, len(staying))
    assert queue.head(0) is None
    assert {id(each) for each in gone} == {id(each) for each in staying}
    assert [each.level for each in gone] == sorted(each.level for each in gone)
    for tenant in "abc":
        for level in range(3):
            of_one = [each for each in gone if (each.tenant, each.level) == (tenant, level)]
            assert of_one == [each for each in staying if (each.tenant, each.level) == (tenant, level)]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), COSTS, st.integers(0, 2)), max_size=60),
    st.integers(0, 20),
    st.tuples(st.sampled_from("abcd"), st.integers(0, 2)),
    st.data(),
)
def test_who_goes_before_a_newcomer_is_told_before_it_comes(arrivals, gone, newcomer, data):
    queue = FairQueue(3, NEVER)
    pushed = [waiter(tenant, cost, level=level, weight=ord(tenant) - 96) for tenant, cost, level in arrivals]
    for each in pushed:
        queue.push(each)
    served(queue, min(gone, len(pushed)))
    for each in pushed:
        if data.draw(st.booleans()):
            queue.remove(each)
    mine = waiter(newcomer[0], level=newcomer[1], weight=ord(newcomer[0]) - 96)
    told = list(queue.before(mine))
    queue.push(mine)
    before = served(queue, len(queue))
    assert {id(each) for each in told} == {id(each) for each in before[: before.index(mine)]}


def test_a_tenant_that_was_away_gets_no_credit():
    queue = FairQueue(3, NEVER)
    for _ in range(100):
        queue.push(waiter("busy"))
        served(queue, 1)
    for _ in range(10):
        queue.push(waiter("busy"))
        queue.push(waiter("back"))
    assert Counter(each.tenant for each in served(queue, 10)) == {"busy": 5, "back": 5}


def test_what_a_request_cost_in_the_end_counts():
    queue = FairQueue(3, NEVER)
    cheap, dear = waiter("cheap", 10), waiter("dear", 10)
    for each in (cheap, dear):
        queue.push(each)
    served(queue, 2)
    queue.charge(dear, 100)
    for _ in range(12):
        queue.push(waiter("cheap", 10))
        queue.push(waiter("dear", 10))
    assert [each.tenant for each in served(queue, 8)].count("dear") == 0


def test_who_has_waited_too_long_goes_before_the_more_urgent():
    queue = FairQueue(3, 60)
    old = waiter("slow", level=2, arrived_s=0)
    queue.push(old)
    queue.push(waiter("quick", level=0, arrived_s=50))
    queue.push(waiter("quick", level=0, arrived_s=51))
    assert served(queue, 1, now_s=59)[0].level == 0
    assert served(queue, 1, now_s=60) == [old]
    assert old.level == 0, "it is counted among those that it goes with"
    assert len(served(queue, 1, now_s=60)) == 1
    assert queue.head(60) is None
