"""What defines each published rule, on hand-made views."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from step_views import BLOCK_SIZE, running, view, waiting

from proxima_engine.gang import GangPolicy
from proxima_engine.lab.baselines import past_future, sglang_ratio
from proxima_engine.lab.baselines.deadline_watermark import DeadlineWatermarkPolicy
from proxima_engine.lab.baselines.hrrn import HrrnPolicy
from proxima_engine.lab.baselines.line import Line
from proxima_engine.lab.baselines.past_future import (
    PastFutureOraclePolicy,
    PastFuturePolicy,
    SampledLengths,
    future_peak_tokens,
)
from proxima_engine.lab.baselines.sglang_ratio import SglangRatioPolicy
from proxima_engine.lab.baselines.sjf_oracle import SjfOraclePolicy
from proxima_engine.policy.plan import Reason, YieldMode
from proxima_engine.policy.protocol import FinishedRequest, Policy
from proxima_engine.policy.view import Changes

RECOMPUTE = YieldMode.RECOMPUTE


def finish(policy: PastFuturePolicy, output_tokens: int, times: int = 1) -> None:
    for number in range(times):
        policy.finished(FinishedRequest(f"done{number}", 10, output_tokens, 100_000))


class TestEveryPolicyWithoutBackfilling:
    @pytest.fixture(
        params=[
            pytest.param(GangPolicy, id="gang"),
            pytest.param(SglangRatioPolicy, id="sglang"),
            pytest.param(lambda: PastFuturePolicy(seed=0), id="past_future"),
            pytest.param(HrrnPolicy, id="hrrn"),
            pytest.param(lambda: DeadlineWatermarkPolicy(10.0), id="deadline"),
        ]
    )
    def policy(self, request: pytest.FixtureRequest) -> Policy:
        return request.param()

    def test_an_idle_engine_starts_what_fits_whatever_is_forecast(self, policy: Policy) -> None:
        """Its declared cap is far beyond the pool, yet waiting would not make the pool larger."""
        plan = policy.plan(view(waiting("a", 1, 9, cap=100_000), free=10, now_s=2.0))
        assert plan.order == ("a",)

    def test_a_head_that_does_not_fit_holds_back_the_rest(self, policy: Policy) -> None:
        plan = policy.plan(view(waiting("head", 1, 11, cap=1), waiting("other", 1, 11, cap=1), free=10, now_s=2.0))
        assert plan.order == ()
        assert plan.held == {"head": Reason.BLOCKS}

    def test_a_cached_prefix_lets_a_request_start(self, policy: Policy) -> None:
        plan = policy.plan(view(waiting("a", 1, 20), free=10, exact={"a": 8}, now_s=2.0))
        assert plan.order == ("a",)
        assert plan.peak_blocks == 8

    def test_a_full_batch_is_named_as_the_reason(self, policy: Policy) -> None:
        plan = policy.plan(view(waiting("a", 1, 1), free=10, slots=0, now_s=2.0))
        assert plan.held == {"a": Reason.SLOTS}

    def test_blocks_of_this_step_are_not_given_away(self, policy: Policy) -> None:
        plan = policy.plan(view(waiting("a", 1, 3, cap=1), free=4, busy=(running("r", 0, 5, growth=2),), now_s=2.0))
        assert plan.order == ()
        assert plan.held == {"a": Reason.BLOCKS}

    def test_a_request_without_its_grammar_is_shown_to_vllm(self, policy: Policy) -> None:
        plan = policy.plan(view(waiting("json", 1, 8, Reason.GRAMMAR), waiting("a", 2, 9), free=10, now_s=3.0))
        assert set(plan.order) == {"json", "a"}
        assert plan.held == {"json": Reason.GRAMMAR}


class TestGang:
    busy = (running("old", 0, 4, growth=1), running("fits", 1, 4), running("young", 2, 4, growth=1))

    def test_nobody_computes_while_somebody_may_still_end(self) -> None:
        plan = GangPolicy().plan(view(waiting("a", 3, 1), free=1, busy=self.busy, in_flight=True))
        assert plan.idle
        assert plan.order == plan.yields == ()

    def test_when_nobody_can_end_the_last_one_yields(self) -> None:
        plan = GangPolicy().plan(view(waiting("a", 3, 1), free=1, busy=self.busy))
        assert not plan.idle
        assert plan.order == ()
        assert plan.yields == (("young", RECOMPUTE),)

    def test_with_all_blocks_there_requests_start_in_order(self) -> None:
        plan = GangPolicy().plan(view(waiting("a", 3, 1), waiting("b", 4, 1), free=3, busy=self.busy, in_flight=True))
        assert plan.order == ("a",)
        assert plan.yields == ()


class TestSglangRatio:
    def test_a_newcomer_is_charged_its_whole_cap(self) -> None:
        busy = (running("r", 0, 1, output=10, cap=10),)
        # 2 blocks, 1 for alignment and a cap of 2 blocks: 5 blocks, of which not one may be missing.
        newcomer = waiting("a", 1, 2, cap=2 * BLOCK_SIZE)
        assert SglangRatioPolicy().plan(view(newcomer, free=6, busy=busy)).order == ("a",)
        assert SglangRatioPolicy().plan(view(newcomer, free=5, busy=busy)).held == {"a": Reason.FORECAST}

    def test_one_that_runs_only_a_ratio_of_what_is_left(self) -> None:
        busy = (running("r", 0, 2, output=0, cap=10 * BLOCK_SIZE),)
        newcomer = waiting("a", 1, 2, cap=2 * BLOCK_SIZE)
        policy = SglangRatioPolicy()
        assert policy.plan(view(newcomer, free=12, busy=busy)).order == ("a",)
        assert policy.plan(view(newcomer, free=11, busy=busy)).order == ()

    def test_a_very_large_cap_counts_as_4096(self) -> None:
        newcomer = waiting("a", 1, 2, cap=1_000_000)
        busy = (running("r", 0, 1, output=10, cap=10),)
        assert SglangRatioPolicy().plan(view(newcomer, free=132, busy=busy)).order == ("a",)

    def test_the_ratio_falls_in_600_steps_and_starts_again_after_idling(self) -> None:
        policy = SglangRatioPolicy()
        calm = view(free=10, busy=(running("r", 0, 1),))
        for _ in range(300):
            policy.plan(calm)
        assert policy.ratio == pytest.approx((sglang_ratio.INITIAL_RATIO + sglang_ratio.LOWEST_RATIO) / 2)
        for _ in range(500):
            policy.plan(calm)
        assert policy.ratio == pytest.approx(0.7 * 0.14)
        policy.plan(view(waiting("a", 1, 1), free=10))
        assert policy.ratio == 0.7

    def test_the_shortest_answers_are_retracted_until_the_rest_fits(self) -> None:
        busy = (
            running("long", 0, 4, growth=2, output=60, cap=100),
            running("short", 1, 3, growth=1, output=10),
            running("short-with-long-prompt", 2, 4, output=10),
        )
        policy = SglangRatioPolicy()
        assert policy.plan(view(waiting("a", 3, 1), free=0, busy=busy)).yields == (
            ("short-with-long-prompt", RECOMPUTE),
        )
        plan = policy.plan(view(waiting("a", 3, 1), free=0, busy=(busy[0], running("short", 1, 1, growth=1, output=1))))
        assert plan.order == ()
        assert plan.yields == (("short", RECOMPUTE),)
        assert policy.ratio == pytest.approx((60 + 20) / 101)

    def test_the_last_one_is_never_retracted(self) -> None:
        assert SglangRatioPolicy().plan(view(free=0, busy=(running("r", 0, 4, growth=1),))).yields == ()


class TestPastFuture:
    def test_the_peak_lies_where_somebody_ends(self) -> None:
        # 100 tokens remain of one that holds 10, 20 of one that holds 50: at the shorter one's end 10 + 50 + 2 * 20.
        held = np.array([50, 10])
        assert future_peak_tokens(np.array([[20, 100]]), held) == 110
        assert future_peak_tokens(np.array([[20, 40]]), held) == 100
        assert future_peak_tokens(np.array([[20, 40], [20, 100]]), held) == 110

    @given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 50)), max_size=8))
    def test_the_peak_is_that_of_a_simulation(self, batch: list[tuple[int, int]]) -> None:
        remaining, held = np.array(batch, dtype=np.int64).reshape(-1, 2).T
        peak = future_peak_tokens(remaining[None], held)
        moments = range(max((left for left, _ in batch), default=0) + 1)
        held_at = [sum(tokens + moment for left, tokens in batch if left >= moment) for moment in moments]
        assert peak == max(held_at)

    def test_recent_answers_decide_how_many_start(self) -> None:
        queue = [waiting(f"r{number}", number, 1, cap=100_000) for number in range(30)]
        cautious, informed = PastFuturePolicy(seed=0), PastFuturePolicy(seed=0)
        finish(informed, 20, times=past_future.WINDOW)
        few, many = (len(policy.plan(view(*queue, free=100)).order) for policy in (cautious, informed))
        # Of 3,200 tokens, with 1,024 assumed for each, two take 2,174 and three would take 3,261.
        assert (few, many) == (2, 30)

    def test_5_percent_stay_free(self) -> None:
        policy = PastFuturePolicy(seed=0)
        finish(policy, 32, times=past_future.WINDOW)
        queue = [waiting(f"r{number}", number, 1, cap=100_000) for number in range(100)]
        # Each counts with 32 tokens, 32 to come and 31 that its last block may leave unused.
        assert len(policy.plan(view(*queue, free=101)).order) == 3232 * 0.95 // 95

    def test_lengths_of_running_ones_lie_beyond_what_they_generated(self) -> None:
        lengths = SampledLengths(seed=1)
        for length in (10, 50, 200) * past_future.WINDOW:
            lengths.learn(length)
        request = running("r", 0, 8, output=60, cap=300)
        drawn = [60 + tokens for _ in range(60) for tokens in lengths.of_running([request]).flat]
        assert len(drawn) == 60 * past_future.MOST_LISTS
        assert min(drawn) >= 60
        assert max(drawn) <= 300
        # All longer answers ended at 200; the cap is one further point of the distribution.
        assert sum(length <= 200 for length in drawn) > 0.9 * len(drawn)
        assert not lengths.of_running([running("r", 0, 10, output=300, cap=300)]).any()

    def test_the_window_forgets(self) -> None:
        lengths = SampledLengths(seed=1)
        for length in (10_000,) * past_future.WINDOW + (10,) * past_future.WINDOW:
            lengths.learn(length)
        assert set(lengths.of_newcomer(waiting("a", 0, 1, cap=100_000), rows=50)) == {10}

    def test_the_latest_arrival_yields(self) -> None:
        busy = (running("late", 5, 4, growth=1), running("early", 0, 4, growth=1))
        plan = PastFuturePolicy(seed=0).plan(view(waiting("a", 9, 1), free=1, busy=busy))
        assert plan.yields == (("late", RECOMPUTE),)
        assert plan.order == ()

    def test_equal_seeds_draw_equally(self) -> None:
        def plans(seed: int) -> list[tuple[str, ...]]:
            policy = PastFuturePolicy(seed)
            queue = [waiting(f"r{number}", number, 1, cap=100_000) for number in range(40)]
            for length in range(1, 2000, 9):
                finish(policy, length)
            return [policy.plan(view(*queue, free=300)).order for _ in range(5)]

        assert plans(3) == plans(3)
        assert len(set(plans(3))) > 1

    def test_the_oracle_admits_what_will_just_fit(self) -> None:
        queue = (waiting("a", 1, 2, cap=100_000), waiting("b", 2, 2, cap=100_000), waiting("c", 3, 2, cap=100_000))
        # Each counts with 64 tokens, 64 to come, one step to leave and 31 that its last block may leave unused.
        oracle = PastFutureOraclePolicy(dict.fromkeys("abc", 64))
        assert oracle.plan(view(*queue, free=16)).order == ("a", "b", "c")
        plan = oracle.plan(view(*queue, free=15))
        assert (plan.order, plan.held) == (("a", "b"), {"c": Reason.FORECAST})


class TestLine:
    @given(
        st.lists(
            st.tuples(st.sampled_from(["arrive", "leave", "restart"]), st.integers(0, 9), st.integers(1, 4)),
            max_size=40,
        )
    )
    def test_it_holds_whoever_waits_in_the_order_of_the_rule(self, events: list[tuple[str, int, int]]) -> None:
        """Equal ranks by arrival; one that waits in a new way is told again."""
        line, queue = Line(lambda request: request.prompt_tokens), {}
        for event, number, blocks in events:
            name = f"r{number}"
            if event == "leave":
                queue.pop(name, None)
                changes = Changes(left=[name])
            else:
                queue[name] = waiting(name, number % 3, blocks)
                changes = Changes(arrived=[queue[name]])
            if event == "restart":
                changes = Changes(restart=True, arrived=list(queue.values()))
            seen = view(free=1, changes=changes, denied="r1")
            (tokens,) = line.follow(seen)
            expected = sorted(queue.values(), key=lambda request: (request.prompt_tokens, request.key))
            assert list(line.smallest_first(seen, tokens)) == [each for each in expected if each.request_id != "r1"]


class TestOrders:
    def test_hrrn_prefers_the_short_and_lets_the_long_age(self) -> None:
        short, long = waiting("short", 9, 1), waiting("long", 0, 20)
        assert HrrnPolicy().plan(view(short, long, free=30, now_s=10.0)).order == ("short", "long")
        late = waiting("late", 100, 1)
        assert HrrnPolicy().plan(view(long, late, free=30, now_s=101.0)).order == ("long", "late")

    def test_requests_that_can_meet_their_deadline_go_first(self) -> None:
        queue = (waiting("late", 0, 4), waiting("soon", 8.5, 4), waiting("later", 9, 4))
        plan = DeadlineWatermarkPolicy(2.0).plan(view(*queue, free=100, now_s=10.0))
        assert plan.order == ("soon", "later", "late")

    def test_a_deadline_that_ends_before_the_step_does_is_lost(self) -> None:
        queue = (waiting("lost", 8.02, 4), waiting("on-time", 9, 4))
        plan = DeadlineWatermarkPolicy(2.0).plan(view(*queue, free=4, now_s=10.0))
        assert plan.order == ("on-time",)

    def test_a_stream_that_was_interrupted_is_not_late(self) -> None:
        queue = (waiting("late", 0, 4), waiting("interrupted", 1, 4, output=7), waiting("new", 9, 4))
        plan = DeadlineWatermarkPolicy(2.0).plan(view(*queue, free=100, now_s=10.0))
        assert plan.order == ("interrupted", "new", "late")

    def test_the_oracle_starts_the_shortest_remaining_answer(self) -> None:
        queue = (waiting("a", 1, 2), waiting("b", 2, 2), waiting("c", 3, 2, output=90))
        plan = SjfOraclePolicy({"a": 50, "b": 20, "c": 100}).plan(view(*queue, free=100))
        assert plan.order == ("c", "b", "a")
