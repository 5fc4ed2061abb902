"""Proxima's policy over several steps: what it remembers, who gives way, and how its forecast is judged."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_pool import CAP, knowing
from step_views import STEP_S, TTFT_S, next_step, running, started, view, waiting

from proxima_engine.policy.admission import REFRESH_STEPS, RESUME_S, ProximaPolicy
from proxima_engine.policy.books import TRIAL_STEPS
from proxima_engine.policy.calibration import START_Z
from proxima_engine.policy.plan import Reason, YieldMode
from proxima_engine.policy.view import Changes, RunningRequest, StepView
from proxima_engine.policy.yielding import MINIMUM_SERVICE_TOKENS

ALL_LATE_S = 6.0
"""A time at which requests that came in the first seconds have missed their target, and none of them is overdue."""


@pytest.fixture
def policy() -> ProximaPolicy:
    """Answers are long: whoever has a lower cap is expected to reach it."""
    return knowing(3000)


class TestConfidence:
    """How the forecast is judged by what came of it; the rule itself is tested with `Calibration`."""

    busy = (running("r", 0, 60, cap=1000),)

    def test_grows_when_somebody_had_to_yield(self, policy: ProximaPolicy) -> None:
        policy.plan(view(free=10, busy=self.busy))
        yielded = waiting("r", 0, 60, output=3, cap=1000)
        policy.plan(view(yielded, free=70, changes=Changes(arrived=[yielded], stopped=["r"])))
        assert policy.calibration.exceeded == 1
        assert policy.calibration.z > START_Z

    def test_does_not_grow_when_one_ended(self, policy: ProximaPolicy) -> None:
        policy.plan(view(free=10, busy=self.busy))
        policy.plan(view(free=70, changes=Changes(stopped=["r"])))
        assert policy.calibration.exceeded == 0

    def test_stays_as_it_is_after_a_horizon_at_which_nothing_is_uncertain(self, policy: ProximaPolicy) -> None:
        seen = view(free=90, busy=(running("r", 0, 10, cap=20),))
        policy.plan(seen)
        for _ in range(2 * max(TRIAL_STEPS)):
            policy.plan(next_step(seen))
        assert policy.calibration.trials == 0

    def test_is_not_shaken_by_one_that_holds_what_was_forecast(self, policy: ProximaPolicy) -> None:
        """A block of 128 tokens has room for all that is to come, so one block is all that is ever held."""
        roomy = RunningRequest("r", (0, 0, "r"), 1, 0, 0.0, prompt_tokens=16, output_tokens=0, cap_tokens=60)
        seen = replace(view(free=90, busy=(roomy,)), block_size=128)
        policy.plan(seen)
        for _ in range(32):
            policy.plan(next_step(seen))
        assert policy.calibration.trials == 1
        assert policy.calibration.exceeded == 0


class TestYielding:
    @staticmethod
    def streams(name: str, blocks: int, *, growth: int, started_s: float = 0.0, output: int = 100) -> RunningRequest:
        assert output > MINIMUM_SERVICE_TOKENS or not output
        return running(name, 0, blocks, growth=growth, started_s=started_s, output=output, cap=CAP)

    def test_the_last_that_started_gives_way_and_nobody_starts(self, policy: ProximaPolicy) -> None:
        busy = (self.streams("old", 4, growth=1), self.streams("young", 4, growth=1, started_s=2))
        plan = policy.plan(view(waiting("a", 1, 1), free=1, busy=busy))
        assert plan.order == ()
        assert plan.yields == (("young", YieldMode.RECOMPUTE),)

    def test_what_two_share_is_not_freed_by_one(self, policy: ProximaPolicy) -> None:
        busy = tuple(self.streams(name, 10, growth=2, started_s=number) for number, name in enumerate("abc"))
        seen = view(free=1, used=14, busy=busy, shared={"a": 8, "b": 8, "c": 8})
        assert [name for name, _ in policy.plan(seen).yields] == ["c", "b"]

    def test_one_whose_first_token_came_too_late_gives_way_first(self, policy: ProximaPolicy) -> None:
        fluent, late = self.streams("fluent", 4, growth=0), self.streams("late", 4, growth=0)
        first = view(free=1, busy=(late,), now_s=TTFT_S + 1)
        policy.plan(first)
        on_time = started(fluent._replace(key=(0, TTFT_S + 1, "fluent")))
        busy = (late._replace(growth_blocks=1), fluent._replace(growth_blocks=1, started_s=9))
        plan = policy.plan(view(free=1, busy=busy, now_s=TTFT_S + 1.1, changes=Changes(started=[on_time])))
        assert plan.yields == (("late", YieldMode.RECOMPUTE),)

    def test_alone_in_the_pool_nobody_gives_way(self, policy: ProximaPolicy) -> None:
        plan = policy.plan(view(waiting("a", 1, 1), free=0, busy=(self.streams("r", 4, growth=1),)))
        assert (plan.order, plan.yields) == ((), ())

    def test_one_that_resumed_is_served_before_it_gives_way_again(self, policy: ProximaPolicy) -> None:
        resumed, other = self.streams("resumed", 4, growth=1, started_s=5), self.streams("other", 4, growth=1)
        again = replace(started(resumed).request, output_tokens=resumed.output_tokens - 1)
        told = Changes(restart=True, started=[replace(started(resumed), request=again), started(other)])
        plan = policy.plan(view(free=1, busy=(resumed, other), changes=told))
        assert plan.yields == (("other", YieldMode.RECOMPUTE),)


class TestFromStepToStep:
    """What a policy remembers, and when it thinks again."""

    head, busy = waiting("head", 1, 20, cap=100), (running("r", 0, 20, output=68, cap=100),)

    @pytest.fixture
    def seen(self) -> StepView:
        return view(self.head, free=10, busy=self.busy, now_s=ALL_LATE_S)

    def test_a_plan_that_would_come_out_the_same_costs_no_lookup(self, policy: ProximaPolicy, seen: StepView) -> None:
        asked: list[str] = []

        def exact(request_id: str) -> int:
            asked.append(request_id)
            return 20

        first = policy.plan(replace(seen, exact_blocks=exact))
        assert asked == ["head"]
        assert policy.plan(next_step(seen, exact_blocks=exact)) == first
        assert asked == ["head"]

    def test_one_that_was_held_starts_when_another_ends(self, policy: ProximaPolicy, seen: StepView) -> None:
        assert policy.plan(seen).order == ()
        plan = policy.plan(view(self.head, free=30, now_s=ALL_LATE_S, changes=Changes(stopped=["r"])))
        assert plan.order == ("head",)

    def test_one_that_was_planned_and_did_not_start_is_planned_again(self, policy: ProximaPolicy) -> None:
        seen = view(waiting("a", 1, 5), free=10)
        assert policy.plan(seen).order == policy.plan(next_step(seen)).order == ("a",)

    def test_one_that_vllm_refused_sits_out_while_others_start(self, policy: ProximaPolicy) -> None:
        seen = view(waiting("a", 1, 2, cap=10), waiting("b", 1, 3, cap=10), free=30, busy=(running("r", 0, 2),))
        assert policy.plan(seen).order == ("a", "b")
        plan = policy.plan(next_step(seen, denied="a"))
        assert plan.order == ("b",)
        assert plan.held == {"a": Reason.BLOCKS}

    def test_one_that_vllm_refused_is_planned_again_after_one_step(self, policy: ProximaPolicy) -> None:
        seen = view(waiting("a", 1, 2, cap=10), free=30, busy=(running("r", 0, 2),))
        assert policy.plan(seen).order == ("a",)
        assert policy.plan(next_step(seen, denied="a")).order == ()
        assert policy.plan(next_step(seen)).order == ("a",)

    def test_what_is_known_of_running_ones_is_renewed_now_and_then(self, policy: ProximaPolicy) -> None:
        """The one that runs has come near its cap: the newcomer need not wait for its end."""
        newcomer = waiting("a", 0, 30, cap=800)
        seen = view(newcomer, free=70, busy=(running("r", 0, 60, cap=1000),))
        assert policy.plan(seen).held == {"a": Reason.FORECAST}
        near_its_end = (running("r", 0, 60, output=995, cap=1000),)
        plans = [policy.plan(next_step(seen, list_running=lambda: near_its_end)) for _ in range(REFRESH_STEPS)]
        assert plans[0].order == ()
        assert plans[-1].order == ("a",)

    def test_one_that_stopped_is_no_part_of_the_forecast_any_more(self, policy: ProximaPolicy) -> None:
        large, small = running("large", 0, 60, cap=800), running("small", 0, 10, cap=1000)
        newcomer = waiting("a", 0, 20, cap=1000)
        assert policy.plan(view(newcomer, free=30, busy=(large, small))).held == {"a": Reason.FORECAST}
        plan = policy.plan(view(newcomer, free=90, busy=(small,), changes=Changes(stopped=["large"])))
        assert plan.order == ("a",)

    def test_when_all_have_stopped_forecasts_do_not_matter_any_more(self, policy: ProximaPolicy) -> None:
        newcomer = waiting("a", 0, 30, cap=800)
        assert policy.plan(view(newcomer, free=30, busy=(running("r", 0, 1, cap=5),))).held == {"a": Reason.FORECAST}
        plan = policy.plan(view(newcomer, free=31, changes=Changes(stopped=["r"])))
        assert plan.order == ("a",)

    def test_one_that_yields_again_stands_still_from_then_on(self, policy: ProximaPolicy) -> None:
        yielded = waiting("a", 0, 30, output=10, cap=1000)
        seen = view(yielded, free=70, busy=(running("r", 0, 60, cap=1000),))
        assert policy.plan(seen).held == {"a": Reason.FORECAST}
        policy.plan(next_step(seen, changes=Changes(left=["a"])))
        again = next_step(seen, now_s=RESUME_S + 1, changes=Changes(arrived=[yielded]))
        assert policy.plan(again).held == {"a": Reason.FORECAST}

    def test_one_that_turns_late_gives_way_to_one_that_waits_for_longer(self, policy: ProximaPolicy) -> None:
        """As long as it is on time, its reservation keeps the other one out."""
        on_time, late = waiting("on-time", 5, 20, cap=20), waiting("late", 2, 8, cap=300)
        seen = view(late, on_time, free=10, busy=self.busy, now_s=6.0)
        assert policy.plan(seen).held == {"on-time": Reason.BLOCKS, "late": Reason.FORECAST}
        plan = policy.plan(next_step(seen, now_s=on_time.deadline_s + STEP_S))
        assert plan.order == ("late",)

    def test_after_a_restart_those_who_ran_before_do_not_count(self, policy: ProximaPolicy) -> None:
        policy.plan(view(free=30, busy=(running("r", 0, 1, cap=1000),)))
        assert policy.plan(view(waiting("a", 0, 30, cap=1000), free=31)).order == ("a",)

    def test_after_a_restart_nobody_has_stood_still_yet(self, policy: ProximaPolicy) -> None:
        seen = view(waiting("a", 0, 30, output=10, cap=1000), free=70, busy=(running("r", 0, 60, cap=1000),))
        assert policy.plan(seen).held == {"a": Reason.FORECAST}
        assert policy.plan(replace(seen, now_s=RESUME_S + 1)).held == {"a": Reason.FORECAST}


def test_a_held_plan_is_looked_at_again_though_nothing_was_told(policy: ProximaPolicy) -> None:
    """Room in the batch may come without anybody who stops, as when a session that waits for input ends."""
    waits = view(waiting("a", 0, 2, cap=10), free=30, slots=0)
    assert policy.plan(waits).held == {"a": Reason.SLOTS}
    free_again = [next_step(waits, slots=10) for _ in range(REFRESH_STEPS + 1)]
    assert ("a",) in [policy.plan(seen).order for seen in free_again]
