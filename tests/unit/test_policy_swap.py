"""What the policy does differently when those who yield lose nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from step_views import STEP_S, next_step, running, started, view, waiting

from proxima_engine.policy.admission import LOOK_STEPS, ProximaPolicy
from proxima_engine.policy.pace import StepTime
from proxima_engine.policy.plan import Reason, YieldMode
from proxima_engine.policy.protocol import FinishedRequest
from proxima_engine.policy.view import Changes, RunningRequest, StartedRequest, StepView, WaitingRequest
from proxima_engine.policy.yielding import (
    CHEAP,
    COMPUTED_AGAIN,
    LIKELY,
    MOVED,
    NEAR_STEPS,
    STILL_CHEAP,
    TURN,
    terms_of,
)

CAP = 1000
TOKEN_S = 1e-3
ROUNDING_S = 1e-9
"""What is lost where times are added up."""
"""What a token of a step costs."""
STALL_S = 0.2


@pytest.fixture
def policy() -> ProximaPolicy:
    """Answers are as long as their cap allows."""
    policy = ProximaPolicy(max_wait_s=75, stall_s=STALL_S)
    for number in range(200):
        policy.finished(FinishedRequest(f"known{number}", 320, CAP, CAP))
    return policy


def measured() -> StepTime:
    steps = StepTime()
    for number in range(40):
        tokens = 10 + number % 5
        steps.learn(tokens, 0.01 + TOKEN_S * tokens)
    return steps


def swapping(seen: StepView, token_s: float = 0.0) -> StepView:
    return replace(seen, swap_token_s=token_s, step_time=measured())


def served(name: str, blocks: int, *, started_s: float = 0.0, tokens: int = 100, growth: int = 0) -> RunningRequest:
    return running(name, 0, blocks, growth=growth, started_s=started_s, output=tokens, cap=CAP)


def yielded(name: str, blocks: int, arrival_s: float = 0.0) -> WaitingRequest:
    return waiting(name, arrival_s, blocks, output=50, cap=CAP)


class TestMode:
    busy = (served("old", 10, growth=1), served("young", 10, growth=1, started_s=1))

    @pytest.mark.parametrize(
        ("token_s", "mode"),
        [
            pytest.param(None, YieldMode.RECOMPUTE, id="no_swap"),
            pytest.param(0.0, YieldMode.SWAP, id="not_measured_yet"),
            pytest.param(0.9 * CHEAP * TOKEN_S, YieldMode.SWAP, id="cheap"),
            # Its KV is kept all the same.
            pytest.param(1.1 * CHEAP * TOKEN_S, YieldMode.SWAP, id="dear"),
            pytest.param(1.1 * TOKEN_S, YieldMode.RECOMPUTE, id="dearer_than_to_compute_it_again"),
        ],
    )
    def test_says_what_becomes_of_the_kv(self, policy: ProximaPolicy, token_s: float | None, mode: YieldMode) -> None:
        seen = replace(view(free=1, busy=self.busy), swap_token_s=token_s, step_time=measured())
        assert policy.plan(seen).yields == (("young", mode),)

    def test_terms_do_not_change_back_and_forth_with_the_estimate_of_a_step(self) -> None:
        """Those who wait for their turn would have none for as long as copies seem dear."""
        seen = replace(view(free=1, busy=self.busy), swap_token_s=1.1 * CHEAP * TOKEN_S, step_time=measured())
        assert terms_of(seen, MOVED) == MOVED
        assert terms_of(replace(seen, swap_token_s=1.1 * STILL_CHEAP * TOKEN_S), MOVED) != MOVED

    def test_where_copies_are_dear_terms_are_those_of_computing_again(self) -> None:
        seen = replace(view(free=1, busy=self.busy), swap_token_s=1.1 * CHEAP * TOKEN_S, step_time=measured())
        assert terms_of(seen, COMPUTED_AGAIN) == replace(COMPUTED_AGAIN, mode=YieldMode.SWAP)


class TestAdmission:
    """Two who run will hold 42 blocks each in the end, and so will the newcomer."""

    busy = (served("a", 13), served("b", 13))
    newcomer = waiting("new", 0, 10, cap=CAP)

    def seen(self, pool: int) -> StepView:
        return view(self.newcomer, free=pool - 26, busy=self.busy)

    def test_fills_the_pool_beyond_the_forecast(self, policy: ProximaPolicy) -> None:
        pool = 110
        assert policy.plan(self.seen(pool)).held == {"new": Reason.FORECAST}
        assert policy.plan(swapping(self.seen(pool))).order == ("new",)

    def test_goes_no_further_than_agreed(self, policy: ProximaPolicy) -> None:
        # 41 blocks each at the highest horizon that is looked at, or a few less.
        assert policy.plan(swapping(self.seen(int(120 / MOVED.overcommit) - 10))).held == {"new": Reason.FORECAST}

    def test_starts_nobody_while_one_who_yielded_waits(self, policy: ProximaPolicy) -> None:
        seen = swapping(view(yielded("y", 20), waiting("small", 0, 1, cap=8), free=10, busy=self.busy))
        plan = policy.plan(seen)
        assert plan.order == ()
        assert plan.held == {"y": Reason.BLOCKS, "small": Reason.BEHIND_HEAD}

    def test_asks_no_forecast_about_one_who_resumes(self, policy: ProximaPolicy) -> None:
        seen = view(yielded("y", 10), free=11, busy=self.busy)
        assert policy.plan(seen).held == {"y": Reason.FORECAST}
        assert policy.plan(swapping(seen)).order == ("y",)


class TestTurns:
    busy = (served("first", 13), served("second", 13, started_s=1))

    def later(
        self, policy: ProximaPolicy, queue: list[WaitingRequest], wait_s: float, token_s: float = 0.0
    ) -> StepView:
        """A view in which ``queue`` has stood still for so long, after a plan that could not start anybody."""
        seen = swapping(view(*queue, free=1, busy=self.busy, now_s=2), token_s)
        assert policy.plan(seen).order == ()
        return next_step(seen, now_s=2 + wait_s)

    def test_who_came_last_yields_to_one_who_stands_still(self, policy: ProximaPolicy) -> None:
        """So that answers end one after the other, and not all of them late."""
        plan = policy.plan(self.later(policy, [yielded("y", 10)], STALL_S))
        assert plan.yields == (("second", YieldMode.SWAP),)
        assert plan.order == ("y",)

    def test_who_is_late_already_yields_before_who_is_fluent(self, policy: ProximaPolicy) -> None:
        queue = [yielded("y", 10)]
        late = replace(started(self.busy[0]).request, ttft_s=-1.0)
        begun = [StartedRequest(late, 0), started(self.busy[1])]
        changes = Changes(restart=True, arrived=queue, started=begun)
        seen = swapping(view(*queue, free=1, busy=self.busy, now_s=2, changes=changes))
        assert policy.plan(seen).yields == ()
        assert policy.plan(next_step(seen, now_s=2 + STALL_S)).yields == (("first", YieldMode.SWAP),)

    def yields_again(self, policy: ProximaPolicy, *, late: bool) -> StepView:
        """``second`` has given its blocks up at 2 s."""
        ttft_s = -1.0 if late else 5.0
        changes = Changes(restart=True, started=[started(each, ttft_s=ttft_s) for each in self.busy])
        seen = swapping(view(free=1, busy=self.busy, now_s=1, changes=changes))
        policy.plan(seen)
        gone = waiting("second", 0, 16, output=101, cap=CAP)
        busy = (self.busy[0], served("other", 13))
        changes = Changes(arrived=[gone], stopped=["second"], started=[started(busy[1], ttft_s=5.0)])
        seen = next_step(seen, now_s=2, list_running=lambda: busy, changes=changes, exact_blocks=lambda _: 17)
        assert policy.plan(seen).order == ()
        return seen

    @pytest.mark.parametrize(
        ("late", "turn_s"),
        [
            # Half of the target, in time to be fluent still.
            pytest.param(False, TURN * STALL_S + ROUNDING_S, id="fluent"),
            # It loses nothing more up to half of its bound.
            pytest.param(True, TURN * 2.0 + ROUNDING_S, id="late"),
        ],
    )
    def test_come_in_time_for_who_is_fluent(self, late: bool, turn_s: float) -> None:
        policy = ProximaPolicy(max_wait_s=75, stall_s=STALL_S, max_stall_s=2.0)
        seen = self.yields_again(policy, late=late)
        early = next_step(seen, now_s=2 + turn_s - STEP_S)
        assert policy.plan(early).order == ()
        assert policy.plan(next_step(early, now_s=2 + turn_s)).order == ("second",)

    @pytest.mark.parametrize(("stood_still_s", "victim"), [(STALL_S / 2, "first"), (2 * STALL_S, "second")])
    def test_are_taken_first_from_who_came_back_too_late(self, stood_still_s: float, victim: str) -> None:
        """While both are fluent, ``first`` yields, which came after it."""
        policy = ProximaPolicy(max_wait_s=75, stall_s=STALL_S, max_stall_s=2.0)
        seen = self.yields_again(policy, late=False)
        resumed = running("second", -1, 17, output=120, cap=CAP)
        busy = (self.busy[0], resumed)
        waits = replace(waiting("second", 0, 16, output=101, cap=CAP), key=(0, -1, "second"))
        standing = yielded("y", 10)
        changes = Changes(left=["second"], started=[StartedRequest(waits, 0)], stopped=["other"], arrived=[standing])
        now_s = 2 + stood_still_s
        seen = next_step(seen, now_s=now_s, list_running=lambda: busy, changes=changes, exact_blocks=lambda _: 10)
        policy.plan(seen)
        assert policy.plan(next_step(seen, now_s=now_s + TURN * 2.0 + ROUNDING_S)).yields == ((victim, YieldMode.SWAP),)

    def test_not_before_it_has_stood_still_for_the_target(self, policy: ProximaPolicy) -> None:
        plan = policy.plan(self.later(policy, [yielded("y", 10)], STALL_S - STEP_S))
        assert (plan.yields, plan.order) == ((), ())

    @pytest.mark.parametrize(("wait_s", "order"), [(TURN * 2.0 - STEP_S, ()), (TURN * 2.0 + ROUNDING_S, ("y",))])
    def test_before_the_target_where_stalls_are_bounded_closer(self, wait_s: float, order: tuple[str, ...]) -> None:
        policy = ProximaPolicy(max_wait_s=75, stall_s=5.0, max_stall_s=2.0)
        assert policy.plan(self.later(policy, [yielded("y", 10)], wait_s)).order == order

    def test_copies_take_no_more_than_their_share_of_the_time(self, policy: ProximaPolicy) -> None:
        """To bring back three of 320 tokens takes 0.0288 s, so that it takes so long until each has had its turn."""
        queue = [yielded(name, 10, arrival_s) for arrival_s, name in enumerate("xyz")]
        token_s = 6e-5
        turn_s = 3 * 320 * token_s / 2 / MOVED.turn_share
        assert turn_s > STALL_S + STEP_S
        early = self.later(policy, queue, turn_s - STEP_S / 2, token_s)
        assert policy.plan(early).yields == ()
        assert policy.plan(next_step(early)).yields != ()

    def test_nobody_yields_again_before_its_minimum_service(self, policy: ProximaPolicy) -> None:
        short = tuple(each._replace(output_tokens=MOVED.service_tokens - 1) for each in self.busy)
        seen = swapping(view(yielded("y", 10), free=1, busy=short, now_s=2))
        policy.plan(seen)
        assert policy.plan(next_step(seen, now_s=9)).yields == ()

    def test_nobody_takes_the_blocks_of_a_higher_priority(self, policy: ProximaPolicy) -> None:
        low = replace(yielded("y", 10), key=(1, 0, "y"))
        later = self.later(policy, [low], STALL_S)
        assert policy.plan(later).yields == ()

    def test_the_first_who_yielded_goes_first(self, policy: ProximaPolicy) -> None:
        queue = yielded("first", 10, arrival_s=1)
        seen = swapping(view(queue, free=1, busy=self.busy, now_s=2, exact={"second": 10}))
        policy.plan(seen)
        arrived_before_it = yielded("second", 10, arrival_s=0)
        policy.plan(next_step(seen, changes=Changes(arrived=[arrived_before_it])))
        assert policy.plan(next_step(seen, now_s=2.1, free_blocks=12)).order == ("first",)

    def test_yields_by_choice_say_nothing_about_the_forecast(self, policy: ProximaPolicy) -> None:
        busy = (running("r", 0, 60, cap=CAP - 1),)
        policy.plan(swapping(view(free=10, busy=busy)))
        gone = waiting("r", 0, 60, output=3, cap=CAP - 1)
        policy.plan(swapping(view(gone, free=70, changes=Changes(arrived=[gone], stopped=["r"]))))
        assert policy.calibration.trials == 0


class TestLikelyVictims:
    """Six who run take a block more every 32 steps each."""

    busy = tuple(served(name, 10, started_s=number) for number, name in enumerate("abcdef"))
    short = 6 * NEAR_STEPS // 32 - 1

    def test_are_those_who_yield_next_the_first_of_them_first(self, policy: ProximaPolicy) -> None:
        likely = policy.plan(swapping(view(free=self.short, busy=self.busy))).likely_victims
        assert likely == ("f", "e", "d", "c")[:LIKELY]
        grown = tuple(each._replace(growth_blocks=1) for each in self.busy)
        plan = policy.plan(swapping(view(free=self.short, busy=grown)))
        assert tuple(request_id for request_id, _ in plan.yields) == likely[: len(plan.yields)]
        assert plan.yields

    @pytest.mark.parametrize(
        ("free", "token_s", "busy"),
        [
            pytest.param(short + 1, 0.0, busy, id="blocks_last_for_a_while"),
            pytest.param(short, None, busy, id="kv_is_lost"),
            pytest.param(0, 0.0, busy[:1], id="the_last_one_never_yields"),
        ],
    )
    def test_are_not_named(
        self, policy: ProximaPolicy, free: int, token_s: float | None, busy: tuple[RunningRequest, ...]
    ) -> None:
        seen = replace(view(free=free, busy=busy), swap_token_s=token_s, step_time=measured())
        assert policy.plan(seen).likely_victims == ()

    def test_where_somebody_stands_still_are_those_whose_blocks_it_would_get_too(self, policy: ProximaPolicy) -> None:
        came_last = self.busy[0]._replace(key=(0, 99.0, "a"))
        seen = swapping(view(yielded("y", 20), free=19, busy=(came_last, *self.busy[1:])))
        assert policy.plan(seen).likely_victims == ("f", "e", "a", "d")

    def test_are_looked_for_every_few_steps(self, policy: ProximaPolicy) -> None:
        """Hundreds may run."""
        seen = swapping(view(free=self.short, busy=self.busy))
        policy.plan(seen)
        looked = []
        for _ in range(LOOK_STEPS):
            looked.append(False)
            plan = policy.plan(next_step(seen, list_running=lambda: looked.__setitem__(-1, True) or self.busy))
            assert plan.likely_victims == ("f", "e", "d", "c")
        assert looked == [False] * (LOOK_STEPS - 1) + [True]
