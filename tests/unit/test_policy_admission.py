"""Proxima's policy on hand-made views: who starts, who is passed, and why the others wait."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_pool import MAX_WAIT_S, knowing
from step_views import STEP_S, next_step, running, started, view, waiting

from proxima_config.hints import RequestClass
from proxima_engine.policy.admission import BACKFILLS_PER_STEP, RESUME_S, ProximaPolicy
from proxima_engine.policy.draft import EXACT_LOOKUPS_PER_STEP
from proxima_engine.policy.plan import Plan, Reason
from proxima_engine.policy.view import Changes, RunningRequest, StepView, WaitingRequest

ALL_LATE_S = 6.0
"""A time at which requests that came in the first seconds have missed their target, and none of them is overdue."""


@pytest.fixture
def policy() -> ProximaPolicy:
    """Answers are long: whoever has a lower cap is expected to reach it."""
    return knowing(3000)


def test_everyone_starts_when_all_fit_cheapest_first(policy: ProximaPolicy) -> None:
    plan = policy.plan(view(waiting("dear", 0, 6), waiting("cheap", 0, 3), free=40))
    assert plan.order == ("cheap", "dear")
    assert plan.held == {}
    assert plan.yields == ()
    assert not plan.idle


def test_there_is_nothing_to_plan_when_nobody_waits(policy: ProximaPolicy) -> None:
    plan = policy.plan(view(free=5, busy=(running("r", 0, 5),)))
    assert (plan.order, dict(plan.held), plan.yields) == ((), {}, ())


class TestOneThatDoesNotFit:
    """A head of 20 blocks, in a pool of 30 of which another holds 20 for its last 32 tokens."""

    busy = (running("ends", 0, 20, output=68, cap=100),)
    head = waiting("head", 1, 20, cap=100)
    lasting = waiting("lasting", 2, 8, cap=300)
    brief = waiting("brief", 3, 8, cap=20)

    def test_is_passed_only_by_those_that_fit_beside_its_reservation(self, policy: ProximaPolicy) -> None:
        plan = policy.plan(view(self.head, self.lasting, self.brief, free=10, busy=self.busy, now_s=ALL_LATE_S))
        assert plan.order == ("brief",)
        assert plan.held == {"head": Reason.BLOCKS, "lasting": Reason.FORECAST}
        assert plan.backfilled == 1
        assert plan.head_start_s == pytest.approx(32 * STEP_S)

    def test_without_it_the_others_start(self, policy: ProximaPolicy) -> None:
        plan = policy.plan(view(self.lasting, free=10, busy=self.busy, now_s=ALL_LATE_S))
        assert plan.order == ("lasting",)
        assert plan.backfilled == 0
        assert plan.head_start_s is None

    def test_is_passed_only_beside_its_reservation_although_it_is_overdue(self, policy: ProximaPolicy) -> None:
        now_s = self.head.arrival_s + MAX_WAIT_S
        lasting, brief = (replace(each, key=(0, now_s, each.request_id)) for each in (self.lasting, self.brief))
        plan = policy.plan(view(self.head, brief, free=10, busy=self.busy, now_s=now_s))
        assert (plan.order, plan.held) == (("brief",), {"head": Reason.BLOCKS})
        plan = policy.plan(view(self.head, lasting, free=10, busy=self.busy, now_s=now_s))
        assert (plan.order, plan.held["lasting"]) == ((), Reason.FORECAST)

    def test_is_passed_by_nobody_after_twice_the_bound(self, policy: ProximaPolicy) -> None:
        now_s = self.head.arrival_s + 2 * MAX_WAIT_S
        plan = policy.plan(view(self.head, self.brief, free=10, busy=self.busy, now_s=now_s))
        assert plan.order == ()
        assert plan.held == {"head": Reason.BLOCKS, "brief": Reason.BEHIND_HEAD}

    def test_is_never_passed_where_the_bound_is_zero(self) -> None:
        policy = knowing(3000, max_wait_s=0.0)
        plan = policy.plan(view(self.head, self.brief, free=10, busy=self.busy, now_s=self.brief.arrival_s))
        assert plan.order == ()
        assert plan.held == {"head": Reason.BLOCKS, "brief": Reason.BEHIND_HEAD}

    @pytest.mark.parametrize(("max_wait_s", "held"), [(0.0, {"head": Reason.FORECAST}), (MAX_WAIT_S, {})])
    def test_waits_for_its_forecast_where_the_bound_is_zero(self, max_wait_s: float, held: dict[str, Reason]) -> None:
        """Where nobody is passed, nobody has to be let in although the pool will be too small."""
        policy = knowing(3000, max_wait_s=max_wait_s)
        grows = running("grows", 0, 5, cap=400)
        now_s = self.head.arrival_s + 2 * MAX_WAIT_S
        assert policy.plan(view(self.head, free=25, busy=(grows,), now_s=now_s)).held == held

    def test_goes_before_a_newcomer_on_time_once_it_is_overdue(self, policy: ProximaPolicy) -> None:
        now_s = self.head.arrival_s + MAX_WAIT_S
        cheap = waiting("cheap", now_s, 1, cap=20)
        assert policy.plan(view(self.head, cheap, free=22, now_s=now_s)).order[0] == "head"
        assert knowing(3000).plan(view(self.head, cheap, free=22, now_s=now_s - 2)).order[0] == "cheap"

    def test_lets_pass_one_that_has_yielded_although_it_is_overdue(self, policy: ProximaPolicy) -> None:
        now_s = self.head.arrival_s + MAX_WAIT_S
        resumed = waiting("resumed", 5, 8, output=10, cap=30)
        plan = policy.plan(view(self.head, resumed, free=10, busy=self.busy, now_s=now_s))
        assert plan.order == ("resumed",)
        assert plan.held == {"head": Reason.BLOCKS}

    @pytest.mark.parametrize(("still_s", "order"), [(2 * RESUME_S - STEP_S, ("brief",)), (2 * RESUME_S, ())])
    def test_is_passed_by_nobody_once_it_has_stood_still_for_too_long(
        self, still_s: float, order: tuple[str, ...]
    ) -> None:
        """One that has yielded. Others need not wait for so long before they are overdue."""
        policy = knowing(3000, max_wait_s=10 * MAX_WAIT_S)
        resumes = waiting("resumes", 0, 20, output=10, cap=100)
        seen = view(resumes, free=10, busy=self.busy)
        assert policy.plan(seen).held == {"resumes": Reason.BLOCKS}
        brief = waiting("brief", still_s, 8, cap=20)
        plan = policy.plan(next_step(seen, now_s=still_s, changes=Changes(arrived=[brief])))
        assert plan.order == order
        assert ("brief" in plan.held) is not bool(order)

    def test_is_followed_by_few_that_are_looked_at(self, policy: ProximaPolicy) -> None:
        crowd = [waiting(f"r{number:02}", 2 + number / 100, 9, cap=1000) for number in range(50)]
        plan = policy.plan(view(self.head, *crowd, free=10, busy=self.busy, now_s=ALL_LATE_S))
        assert plan.order == ()
        assert len(plan.held) <= 1 + BACKFILLS_PER_STEP + 1
        assert list(plan.held.values())[-1] is Reason.BEHIND_HEAD


class TestOneThatWaitsAlone:
    """Two hold 25 of 36 blocks, the last of them for 32 steps more. With a newcomer all together would hold 37 in the
    first of those steps, and one of them would have to yield until ``ends`` has ended."""

    busy = (running("ends", 0, 20, output=68, cap=100), running("stays", 0, 5, cap=50))
    brief = 32 * STEP_S

    def plan(self, stall_s: float, *, quiet_s: float = MAX_WAIT_S, others: tuple[WaitingRequest, ...] = ()) -> Plan:
        policy = knowing(3000, stall_s=stall_s)
        seen = view(free=11, busy=self.busy)
        if quiet_s < MAX_WAIT_S:
            # Those who wait beside each other are gone soon.
            crowd = [waiting("x", -9, 30), waiting("y", -9, 30)]
            seen = view(*crowd, free=11, busy=self.busy)
            policy.plan(seen)
            seen = next_step(seen, changes=Changes(left=["x", "y"]))
        policy.plan(seen)
        now_s = seen.now_s + quiet_s
        arrived = [waiting("new", now_s, 10, cap=64), *others]
        known = {each.request_id: each.blocks_at_most for each in arrived}.__getitem__
        return policy.plan(next_step(seen, now_s=now_s, changes=Changes(arrived=arrived), exact_blocks=known))

    def test_starts_where_one_who_yields_for_it_would_go_on_within_the_target(self) -> None:
        assert self.plan(self.brief + STEP_S).order == ("new",)

    def test_waits_where_that_one_would_stand_still_for_longer(self) -> None:
        assert self.plan(self.brief / 2).held == {"new": Reason.FORECAST}

    def test_waits_where_others_wait_too(self) -> None:
        """What is free next is for them as well."""
        other = waiting("other", MAX_WAIT_S, 30)
        assert self.plan(self.brief + STEP_S, others=(other,)).held["new"] is Reason.FORECAST

    def test_waits_where_others_have_waited_not_long_ago(self) -> None:
        assert self.plan(self.brief + STEP_S, quiet_s=MAX_WAIT_S / 2).held == {"new": Reason.FORECAST}


class TestBlocks:
    def test_that_running_requests_need_in_this_step_are_not_given_away(self, policy: ProximaPolicy) -> None:
        newcomer = waiting("a", 1, 3, cap=10)
        fits = view(newcomer, free=5, busy=(running("r", 0, 5, growth=2),))
        assert policy.plan(fits).order == ("a",)
        plan = knowing(3000).plan(view(newcomer, free=4, busy=(running("r", 0, 5, growth=2),)))
        assert plan.order == ()
        assert plan.held == {"a": Reason.BLOCKS}

    def test_of_a_cached_prefix_are_not_needed_to_start(self, policy: ProximaPolicy) -> None:
        plan = policy.plan(view(waiting("a", 1, 20), free=10, exact={"a": 8}))
        assert plan.order == ("a",)

    def test_of_a_cached_prefix_are_not_part_of_the_forecast(self, policy: ProximaPolicy) -> None:
        """It would start by the blocks that are free; only with its prefix do both stay in the pool to their ends."""
        busy = (running("r", 0, 20, cap=640),)
        newcomer = waiting("a", 1, 20, cap=640)
        assert policy.plan(view(newcomer, free=45, busy=busy)).held == {"a": Reason.FORECAST}
        assert knowing(3000).plan(view(newcomer, free=45, busy=busy, exact={"a": 5})).order == ("a",)

    def test_that_several_share_count_once(self, policy: ProximaPolicy) -> None:
        """Two hold 20 blocks each, 18 of them in common: 22 are in use, not 40."""
        busy = (running("r", 0, 20, cap=64), running("s", 0, 20, cap=64))
        shares = Changes(restart=True, started=[started(each, shared=18) for each in busy])
        seen = view(free=28, used=22, busy=busy, changes=shares)
        policy.plan(seen)
        newcomer = waiting("a", 1, 20, cap=64)
        plan = policy.plan(next_step(seen, changes=Changes(arrived=[newcomer])))
        assert plan.order == ("a",)

    def test_lookups_of_prefixes_are_bounded(self, policy: ProximaPolicy) -> None:
        asked: list[str] = []

        def exact(request_id: str) -> int:
            asked.append(request_id)
            return 20

        queue = [waiting(f"r{number:02}", number / 100, 20) for number in range(50)]
        seen = replace(view(*queue, free=10, now_s=ALL_LATE_S), exact_blocks=exact)
        policy.plan(seen)
        assert asked == [f"r{number:02}" for number in range(EXACT_LOOKUPS_PER_STEP)]


class TestForecast:
    busy = (running("r", 0, 60, cap=1000),)
    newcomer = waiting("a", 0, 30, cap=1000)

    def test_holds_back_one_that_fits_now_but_not_at_the_peak(self, policy: ProximaPolicy) -> None:
        plan = policy.plan(view(self.newcomer, free=70, busy=self.busy))
        assert plan.order == ()
        assert plan.held == {"a": Reason.FORECAST}

    def test_lets_it_start_when_nobody_runs(self, policy: ProximaPolicy) -> None:
        assert policy.plan(view(self.newcomer, free=31)).order == ("a",)

    def test_lets_it_start_where_the_peak_fits(self, policy: ProximaPolicy) -> None:
        assert policy.plan(view(self.newcomer, free=100, busy=self.busy)).order == ("a",)

    def test_lets_it_start_where_answers_are_short(self) -> None:
        assert knowing(10).plan(view(self.newcomer, free=70, busy=self.busy)).order == ("a",)

    def test_lets_it_start_where_it_declares_that_its_answer_is_short(self, policy: ProximaPolicy) -> None:
        brief = replace(self.newcomer, cap_tokens=20)
        assert policy.plan(view(brief, free=70, busy=self.busy)).order == ("a",)

    def test_counts_those_who_start_in_the_same_step(self, policy: ProximaPolicy) -> None:
        queue = [waiting(f"r{number}", 0, 10, cap=960) for number in range(10)]
        plan = policy.plan(view(*queue, free=100))
        # Each becomes 40 blocks long.
        assert len(plan.order) == 2
        assert set(plan.held.values()) == {Reason.FORECAST}

    def test_gives_no_say_to_one_that_has_stood_still_for_too_long(self, policy: ProximaPolicy) -> None:
        yielded = waiting("a", 0, 30, output=10, cap=1000)
        another = waiting("another", 0, 200)
        seen = view(yielded, another, free=70, busy=self.busy)
        assert policy.plan(seen).held["a"] is Reason.FORECAST
        almost = next_step(seen, now_s=RESUME_S - STEP_S, changes=Changes(left=["another"]))
        assert policy.plan(almost).held == {"a": Reason.FORECAST}
        plan = policy.plan(next_step(seen, now_s=RESUME_S, changes=Changes(arrived=[another])))
        assert plan.order == ("a",)

    def test_sees_a_peak_right_before_a_cap(self, policy: ProximaPolicy) -> None:
        """Nobody ends before the cap, and with 1,023 tokens each holds 42 blocks: 110 are enough for two."""
        queue = [waiting(f"r{number}", 0, 10, cap=1024) for number in range(3)]
        plan = policy.plan(view(*queue, free=110))
        assert plan.order == ("r0", "r1")

    def test_counts_the_block_that_one_takes_in_this_step(self, policy: ProximaPolicy) -> None:
        """Its first token goes to an eleventh block; the newcomer needs one for its own, and 21 are there."""
        begins_a_block = RunningRequest("r", (0, 0, "r"), 10, 1, 0.0, prompt_tokens=320, output_tokens=1, cap_tokens=30)
        plan = policy.plan(view(waiting("a", 0, 10, cap=30), free=11, busy=(begins_a_block,)))
        assert plan.held == {"a": Reason.FORECAST}

    def test_expects_any_length_up_to_the_cap_before_it_has_seen_one(self) -> None:
        """40 answers of up to 3,200 tokens, 100 blocks each at the end, do not fit into 100 blocks together."""
        queue = [waiting(f"r{number:02}", 0, 2, cap=3200) for number in range(40)]
        beside_one_that_ends = view(*queue, free=100, busy=(running("r", 0, 1, output=1, cap=2),))
        few = ProximaPolicy(MAX_WAIT_S).plan(beside_one_that_ends).order
        assert 0 < len(few) < 20
        assert len(ProximaPolicy(MAX_WAIT_S).plan(view(*queue, free=100)).order) == pytest.approx(len(few), abs=2)

    def test_forgets_a_prefix_that_nobody_holds_any_more(self, policy: ProximaPolicy) -> None:
        policy.plan(view(free=30, used=70, busy=(running("r", 0, 10),)))
        queue = (waiting("a", 0, 40, cap=10), waiting("b", 0, 40, cap=10))
        plan = policy.plan(view(*queue, free=100, changes=Changes(arrived=queue, stopped=["r"])))
        assert plan.order == ("a", "b")


class TestOthersWhoWait:
    def test_a_full_batch_is_named_as_the_reason(self, policy: ProximaPolicy) -> None:
        queue = (waiting("a", 1, 1, cap=10), waiting("b", 2, 1, cap=10), waiting("c", 3, 1, cap=10))
        plan = policy.plan(view(*queue, free=10, slots=1))
        assert plan.order == ("a",)
        assert plan.held == {"b": Reason.SLOTS}

    def test_one_without_its_grammar_is_shown_to_vllm_and_costs_nothing(self, policy: ProximaPolicy) -> None:
        json, other = waiting("json", 1, 8, Reason.GRAMMAR, cap=10), waiting("a", 2, 9, cap=10)
        plan = policy.plan(view(json, other, free=10, slots=1))
        assert plan.order == ("json", "a")
        assert plan.held == {"json": Reason.GRAMMAR}
        assert plan.backfilled == 0

    def test_one_that_has_its_grammar_is_considered(self, policy: ProximaPolicy) -> None:
        seen = view(waiting("json", 1, 8, Reason.GRAMMAR), free=5)
        assert policy.plan(seen).order == ("json",)
        plan = policy.plan(next_step(seen, changes=Changes(arrived=[waiting("json", 1, 8)]), exact_blocks=lambda _: 8))
        assert (plan.order, plan.held) == ((), {"json": Reason.BLOCKS})

    def test_one_that_left_is_not_shown_again(self, policy: ProximaPolicy) -> None:
        seen = view(waiting("json", 1, 8, Reason.GRAMMAR), waiting("a", 2, 20), free=10)
        policy.plan(seen)
        plan = policy.plan(next_step(seen, changes=Changes(left=["json", "a"])))
        assert (plan.order, dict(plan.held)) == ((), {})


class TestClassLong:
    """Prompts of 40 blocks in a pool of 100: together they may start with 50."""

    queue = tuple(waiting(name, 0, 40, cap=10, request_class=RequestClass.LONG) for name in ("long-1", "long-2"))
    short = waiting("short", 1, 10, cap=10)

    def test_leaves_room_to_others_who_wait(self, policy: ProximaPolicy) -> None:
        plan = policy.plan(view(*self.queue, self.short, free=100))
        assert set(plan.order) == {"long-1", "short"}
        assert plan.held == {"long-2": Reason.CLASS_LIMIT}

    def test_takes_all_the_room_where_nobody_else_waits(self, policy: ProximaPolicy) -> None:
        assert policy.plan(view(*self.queue, free=100)).order == ("long-1", "long-2")

    def test_counts_those_who_run_until_they_end(self, policy: ProximaPolicy) -> None:
        runs, waits = running("runs", 0, 40, cap=10), self.queue[0]
        big = waiting("big", 1, 70, cap=10)
        begun = Changes(restart=True, arrived=[waits, big], started=[started(runs, request_class=RequestClass.LONG)])
        seen = view(waits, big, free=60, busy=(runs,), changes=begun)
        assert policy.plan(seen).held == {waits.request_id: Reason.CLASS_LIMIT, "big": Reason.BLOCKS}
        ended = {"free_blocks": 65, "used_blocks": 35, "list_running": tuple}
        assert policy.plan(next_step(seen, **ended, changes=Changes(stopped=["runs"]))).order == (waits.request_id,)

    def test_one_that_is_larger_than_its_share_starts_when_no_other_runs(self, policy: ProximaPolicy) -> None:
        giant = waiting("giant", 0, 80, cap=10, request_class=RequestClass.LONG)
        assert set(policy.plan(view(giant, self.short, free=100)).order) == {"giant", "short"}

    def test_one_that_is_overdue_knows_no_share(self, policy: ProximaPolicy) -> None:
        plan = policy.plan(view(*self.queue, self.short, free=100, now_s=MAX_WAIT_S))
        assert {"long-1", "long-2"} <= set(plan.order)

    def test_one_that_is_held_does_not_hold_others(self, policy: ProximaPolicy) -> None:
        others = [waiting(f"other-{number}", 1, 5, cap=10) for number in range(9)]
        plan = policy.plan(view(*self.queue, *others, free=100, now_s=ALL_LATE_S))
        assert len(plan.order) == 10


class TestAdapters:
    """Two of them in a batch at most, and one is in use."""

    def seen(self, *queue: WaitingRequest, now_s: float = 0.0) -> StepView:
        busy = (running("r", 0, 10),)
        return replace(view(*queue, free=50, busy=busy, now_s=now_s), adapters=frozenset({1}), adapter_slots=2)

    def test_one_whose_adapter_has_no_slot_is_in_nobodys_way(self, policy: ProximaPolicy) -> None:
        queue = [waiting("second", 0, 3, adapter=2), waiting("third", 0, 20, adapter=3, ttft_s=-1)]
        plan = policy.plan(self.seen(*queue, waiting("none", 1, 20, ttft_s=-1), waiting("first", 2, 4, adapter=1)))
        assert set(plan.order) == {"second", "first", "none"}
        assert plan.held == {"third": Reason.LORA}

    @pytest.mark.parametrize("output", [0, 10], ids=["overdue", "stands-still"])
    def test_one_that_has_waited_for_too_long_gets_the_next_slot(self, policy: ProximaPolicy, output: int) -> None:
        waits = waiting("third", 0, 3, adapter=3, output=output)
        in_use = replace(self.seen(waits), adapters=frozenset({1, 2}))
        policy.plan(in_use)
        follows = waiting("second", MAX_WAIT_S, 3, adapter=2)
        later = next_step(in_use, now_s=MAX_WAIT_S, changes=Changes(arrived=[follows]))
        assert policy.plan(later).order == ()
        assert policy.plan(replace(later, adapters=frozenset({1}), changes=Changes(left=["second"]))).order == (
            "third",
        )

    def test_one_that_has_waited_for_too_long_does_not_stop_those_without(self, policy: ProximaPolicy) -> None:
        waits, other = waiting("third", 0, 3, adapter=3), waiting("none", MAX_WAIT_S, 3)
        in_use = replace(self.seen(waits, other, now_s=MAX_WAIT_S), adapters=frozenset({1, 2}))
        plan = policy.plan(in_use)
        assert (plan.order, plan.held) == (("none",), {"third": Reason.LORA})

    @pytest.mark.parametrize(("bounds", "starts"), [(1, ("second",)), (2, ())], ids=["overdue", "twice the bound"])
    def test_after_twice_the_bound_no_adapter_passes(
        self, policy: ProximaPolicy, bounds: int, starts: tuple[str, ...]
    ) -> None:
        """Those behind it are overdue as well."""
        queue = [waiting("third", 0, 3, adapter=3), waiting("second", 0.1, 3, adapter=2)]
        in_use = replace(self.seen(*queue, now_s=bounds * MAX_WAIT_S + 0.2), adapters=frozenset({1, 2}))
        assert policy.plan(in_use).order == starts


class TestOneOfAHigherPriority:
    """Smaller is higher, as in vLLM. Those who run have the lower one unless something else is said."""

    busy = (
        running("low", 0, 20, priority=1, started_s=0, cap=1000),
        running("lower", 0, 20, priority=2, started_s=0, cap=1000),
        running("last", 0, 20, priority=1, started_s=1, cap=1000),
    )
    high = waiting("high", 1, 10, cap=1000)

    def test_takes_the_slot_of_the_lowest(self, policy: ProximaPolicy) -> None:
        plan = policy.plan(view(self.high, free=500, slots=0, busy=self.busy))
        assert (plan.order, [name for name, _ in plan.yields]) == (("high",), ["lower"])

    def test_takes_blocks_of_no_more_than_it_needs(self, policy: ProximaPolicy) -> None:
        large = replace(self.high, blocks_at_most=25)
        plan = policy.plan(view(large, free=1, busy=self.busy))
        assert (plan.order, [name for name, _ in plan.yields]) == (("high",), ["lower", "last"])

    def test_does_not_count_on_what_others_hold_too(self, policy: ProximaPolicy) -> None:
        large = replace(self.high, blocks_at_most=25)
        plan = policy.plan(view(large, free=1, busy=self.busy, shared={"last": 17, "low": 17}))
        assert (plan.order, [name for name, _ in plan.yields]) == (("high",), ["lower", "last", "low"])
        plan = policy.plan(view(large, free=1, busy=self.busy, shared={"last": 19, "low": 19}))
        assert (plan.order, plan.yields, plan.held) == ((), (), {"high": Reason.BLOCKS})

    def test_takes_nothing_where_that_is_no_help(self, policy: ProximaPolicy) -> None:
        mixed = (*self.busy, running("equal", 0, 40, cap=1000))
        large = replace(self.high, blocks_at_most=62)
        plan = policy.plan(view(large, free=1, busy=mixed))
        assert (plan.order, plan.yields, plan.held) == ((), (), {"high": Reason.BLOCKS})

    def test_does_not_wait_for_what_the_others_are_forecast_to_need(self, policy: ProximaPolicy) -> None:
        plan = policy.plan(view(self.high, free=11, busy=self.busy))
        assert (plan.order, plan.yields) == (("high",), ())

    @pytest.mark.parametrize("slots", [0, 9])
    def test_takes_nothing_while_it_may_not_start(self, policy: ProximaPolicy, slots: int) -> None:
        """The forecast of its equal fills the pool of 65."""
        mixed = (running("low", 0, 20, priority=1, cap=1000), running("equal", 0, 40, cap=10_000))
        seen = view(replace(self.high, cap_tokens=10_000), free=5, slots=slots, busy=mixed)
        plan = policy.plan(seen)
        assert (plan.order, plan.yields, plan.held) == ((), (), {"high": Reason.FORECAST})

    @pytest.mark.parametrize("slots", [0, 9])
    def test_takes_nothing_of_its_equals(self, policy: ProximaPolicy, slots: int) -> None:
        equals = tuple(each._replace(key=(0, 0, each.request_id)) for each in self.busy)
        plan = policy.plan(view(self.high, free=9, slots=slots, busy=equals))
        assert (plan.order, plan.yields) == ((), ())
        assert plan.held == {"high": Reason.BLOCKS if slots else Reason.SLOTS}

    def test_says_nothing_about_the_forecast_by_that(self, policy: ProximaPolicy) -> None:
        seen = view(self.high, free=500, slots=0, busy=self.busy)
        assert policy.plan(seen).yields
        gone = waiting("lower", 0, 20, output=3, cap=1000, priority=2)
        policy.plan(next_step(seen, changes=Changes(arrived=[gone], stopped=["lower"], left=["high"])))
        assert policy.calibration.trials == 0


def test_one_that_cannot_end_in_time_lets_pass_those_that_can(policy: ProximaPolicy) -> None:
    """An answer of 100 tokens takes five seconds."""
    cannot = waiting("cannot", 0, 30, cap=100, total_s=4.0)
    can = waiting("can", 0, 40, cap=100, total_s=6.0)
    assert policy.plan(view(cannot, can, free=100)).order == ("can", "cannot")
    soon = replace(cannot, total_s=6.0)
    assert knowing(3000).plan(view(soon, can, free=100)).order == ("cannot", "can")
