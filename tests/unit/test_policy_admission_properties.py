"""What holds for every plan of Proxima's policy, whatever waits and runs, and over whole runs of a small pool."""

from __future__ import annotations

from copy import deepcopy

from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_pool import MAX_WAIT_S, Job, SimulatedPool, check_age_bound, check_plan, knowing
from step_views import BLOCK_SIZE, running, view, waiting

from proxima_engine.policy.admission import ProximaPolicy
from proxima_engine.policy.plan import Reason
from proxima_engine.policy.view import WaitingRequest

NOW_S = 20.0


@st.composite
def queues(draw: st.DrawFn) -> tuple[WaitingRequest, ...]:
    one = st.tuples(
        st.floats(-5, 20),
        st.integers(1, 40),
        st.sampled_from([None, None, None, None, Reason.GRAMMAR]),
        st.sampled_from([0, 0, 0, 20]),
        st.sampled_from([20, 200, 2000]),
        st.sampled_from([0, 0, 1]),
    )
    drawn = draw(st.lists(one, max_size=25))
    return tuple(
        waiting(f"r{number:02}", arrival_s, blocks, not_ready, output=output, cap=cap + output, priority=priority)
        for number, (arrival_s, blocks, not_ready, output, cap, priority) in enumerate(drawn)
    )


busy_sets = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 1), st.integers(0, 30)), max_size=6).map(
    lambda drawn: tuple(
        running(f"busy{number}", 0, blocks, growth=growth, output=output, cap=output + 50)
        for number, (blocks, growth, output) in enumerate(drawn)
    )
)
free_blocks = st.integers(0, 120)
known_lengths = st.sampled_from([(), (10,), (3000,), (10, 300)])


def policy_knowing(lengths: tuple[int, ...]) -> ProximaPolicy:
    return knowing(*lengths, times=20)


@settings(deadline=None)
@given(queue=queues(), busy=busy_sets, lengths=known_lengths, free=free_blocks, slots=st.integers(0, 20))
def test_a_plan_never_promises_more_than_there_is(queue, busy, lengths, free, slots) -> None:
    seen = view(*queue, free=free, slots=slots, busy=busy, now_s=NOW_S)
    check_plan(policy_knowing(lengths).plan(seen), seen)


@settings(deadline=None)
@given(queue=queues(), busy=busy_sets, lengths=known_lengths, free=free_blocks)
def test_one_that_is_overdue_is_passed_only_beside_its_reservation_and_after_twice_the_bound_by_nobody(
    queue, busy, lengths, free
) -> None:
    seen = view(*queue, free=free, busy=busy, now_s=NOW_S)
    check_age_bound(policy_knowing(lengths).plan(seen), seen, lambda _: MAX_WAIT_S)


@settings(deadline=None)
@given(queue=queues(), lengths=known_lengths, free=free_blocks)
def test_an_idle_pool_starts_whoever_is_first_if_only_it_fits(queue, lengths, free) -> None:
    plan = policy_knowing(lengths).plan(view(*queue, free=free, now_s=NOW_S))
    ready = [request for request in queue if request.not_ready is None]
    if ready and max(request.blocks_at_most for request in ready) <= free:
        assert {request.request_id for request in ready} & set(plan.order)


@settings(deadline=None, max_examples=60)
@given(
    before=st.lists(st.tuples(queues(), busy_sets, free_blocks), max_size=3),
    queue=queues(),
    busy=busy_sets,
    free=free_blocks,
    lengths=known_lengths,
)
def test_after_a_restart_a_policy_plans_like_a_fresh_one_that_has_learned_the_same(
    before, queue, busy, free, lengths
) -> None:
    told, fresh = policy_knowing(lengths), ProximaPolicy(MAX_WAIT_S)
    for number, (old_queue, old_busy, old_free) in enumerate(before):
        told.plan(view(*old_queue, free=old_free, busy=old_busy, now_s=NOW_S - 5 + number))
    fresh._books._forecast = deepcopy(told._books._forecast)
    fresh.calibration.z = told.calibration.z
    seen = view(*queue, free=free, busy=busy, now_s=NOW_S)
    assert told.plan(seen) == fresh.plan(seen)


# -- whole runs ------------------------------------------------------------------------------------------------------

POOL_BLOCKS = 12
AGE_BOUND_S = 1.0
"""Twenty steps."""


@st.composite
def loads(draw: st.DrawFn) -> list[Job]:
    jobs = []
    for number in range(draw(st.integers(1, 16))):
        prompt = draw(st.integers(1, 6 * BLOCK_SIZE))
        cap = draw(st.integers(1, 3 * BLOCK_SIZE))
        jobs.append(Job(f"r{number:02}", draw(st.integers(0, 30)), prompt, draw(st.integers(1, cap)), cap))
    return jobs


@settings(deadline=None, max_examples=60)
@given(
    jobs=loads(),
    slots=st.integers(1, 8),
    lengths=known_lengths,
    aborts=st.dictionaries(st.integers(0, 80), st.integers(0, 15), max_size=3),
    restarts=st.sets(st.integers(0, 80), max_size=3),
)
def test_every_request_gets_its_whole_answer_and_no_block_is_given_twice(
    jobs, slots, lengths, aborts, restarts
) -> None:
    """Every step brings a token to somebody, so the run ends after as many steps as there are tokens."""
    pool = SimulatedPool(knowing(*lengths, max_wait_s=AGE_BOUND_S, times=20), POOL_BLOCKS, slots)
    for number in range(31 + sum(job.answer_tokens for job in jobs)):
        arrivals = [job for job in jobs if job.arrival_step == number]
        gone = [f"r{aborts[number]:02}"] if number in aborts else []
        pool.step(arrivals, gone, restart=number == 0 or number in restarts)
    assert not pool.waiting
    assert not pool.running
    gone = {f"r{index:02}" for index in aborts.values()}
    assert all(job.output_tokens == job.answer_tokens for job in jobs if job.name not in gone)


def test_a_policy_that_believes_in_short_answers_makes_some_yield_and_learns_not_to() -> None:
    """Twenty at a time, whose answers are ten times as long as all before them."""
    # With a bound that nobody reaches: whoever yields then, yields because the forecast was wrong.
    never_s = 1000 * AGE_BOUND_S
    policy = knowing(8, max_wait_s=never_s, cap=96)
    yields = []
    for wave in range(4):
        pool = SimulatedPool(policy, 2 * POOL_BLOCKS, slots=24)
        jobs = [Job(f"w{wave}-{number:02}", 0, 20, 80, 96) for number in range(20)]
        pool.step(jobs, restart=True)
        while pool.waiting or pool.running:
            pool.step()
        yields.append(pool.yields)
    assert yields[0] > 0
    assert yields[-1] < yields[0] / 2
