"""What the view remembers from step to step is what the engine's own books say."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from stepping_engine import SteppingEngine, engine_config

from proxima_engine.policy.admission import ProximaPolicy
from proxima_engine.policy.plan import Plan
from proxima_engine.policy.view import RunningRequest, StepView
from proxima_engine.scheduling.running import cap_tokens

BLOCK_SIZE = 32


def listed_anew(engine: SteppingEngine, started_s: dict[str, float]) -> list[RunningRequest]:
    """Those who run, with nothing remembered but when each was first seen; blocks by vLLM's block tables."""
    scheduler, budget = engine.scheduler, engine.scheduler.max_num_scheduled_tokens
    found = []
    for request in scheduler.running:
        computed, ahead = request.num_computed_tokens, request.num_output_placeholders
        ends = ahead and computed + 2 - ahead >= request.num_prompt_tokens + request.max_tokens
        new = 0 if ends else min(request.num_tokens + ahead - computed, budget)
        budget -= new
        held = -(-computed // BLOCK_SIZE)
        found.append(
            RunningRequest(
                request_id=request.request_id,
                key=scheduler.waiting.key(request),
                blocks=held,
                growth_blocks=-(-(computed + new) // BLOCK_SIZE) - held,
                started_s=started_s[request.request_id],
                prompt_tokens=request.num_prompt_tokens,
                output_tokens=request.num_output_tokens,
                cap_tokens=cap_tokens(request, scheduler.max_model_len),
            )
        )
    return found


class Witness(ProximaPolicy):
    """Checks each view before it plans by it."""

    engine: SteppingEngine
    views = 0

    def plan(self, view: StepView) -> Plan:
        known = getattr(self, "started_s", {})
        now = [request.request_id for request in self.engine.scheduler.running]
        changes = view.changes
        if changes.restart:
            known = {}
        assert list(changes.stopped) == sorted(known.keys() - now)
        assert [each.request.request_id for each in changes.started] == [each for each in now if each not in known]
        self.started_s = {request_id: known.get(request_id, view.now_s) for request_id in now}
        assert view.running == listed_anew(self.engine, self.started_s)
        assert view.growth_blocks == sum(each.growth_blocks for each in view.running)
        self.views += 1
        if self.views % 7 == 0:
            message = "the next view tells everything anew"
            raise ValueError(message)
        return super().plan(view)


class GrowthWitness(ProximaPolicy):
    """Checks what all together are said to grow by."""

    def plan(self, view: StepView) -> Plan:
        assert view.growth_blocks == sum(each.growth_blocks for each in view.running)
        return super().plan(view)


actions = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 700), st.integers(1, 60)),
        st.tuples(st.just("abort"), st.integers(0, 40), st.just(0)),
        st.tuples(st.just("step"), st.integers(1, 12), st.just(0)),
    ),
    min_size=5,
    max_size=40,
)


SOME_END_BESIDE_A_LONG_PROMPT = [
    *[("add", 1, 1)] * 3,
    ("add", 440, 5),
    ("abort", 1, 0),
    *[("add", 6, 5), ("add", 104, 3), ("add", 202, 60)],
]


@pytest.mark.parametrize("overlap", [False, True], ids=["sync", "async"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=actions, chunk=st.sampled_from([64, 2048]))
@example(actions=SOME_END_BESIDE_A_LONG_PROMPT, chunk=64)
def test_every_view_is_as_if_made_anew(overlap: bool, actions: list[tuple[str, int, int]], chunk: int) -> None:
    """Whoever comes, leaves, yields or resumes, and after a plan that failed."""
    engine = SteppingEngine(engine_config(overlap=overlap, max_num_batched_tokens=chunk, max_num_seqs=12), blocks=30)
    policy = engine.scheduler.proxima_policy = Witness(max_wait_s=2.0)
    policy.engine = engine
    names: list[str] = []
    for action, number, tokens in actions:
        if action == "add":
            names.append(f"r{len(names)}")
            engine.add(names[-1], number, tokens)
        elif action == "abort" and number < len(names):
            engine.abort(names[number])
        elif action == "step":
            for _ in range(number):
                engine.step()
    # Whatever came before, one runs to its end.
    engine.add("last", 40, 9)
    engine.drain()
    assert policy.views
    failures = engine.scheduler.proxima_guard.failures_total
    assert failures == policy.views // 7, engine.scheduler.proxima_guard.last_error


@pytest.mark.parametrize("overlap", [False, True], ids=["sync", "async"])
def test_a_prompt_of_which_a_step_computes_one_token_is_no_answer_yet(overlap: bool) -> None:
    """Three answers leave it one token of each step, until they end."""
    engine = SteppingEngine(engine_config(overlap=overlap, max_num_batched_tokens=4, max_num_seqs=4), blocks=30)
    engine.scheduler.proxima_policy = GrowthWitness(max_wait_s=2.0)
    for index in range(3):
        engine.add(f"answer{index}", 1, 6)
    engine.add("prompt", 150, 4)
    parts = [engine.step().num_scheduled_tokens.get("prompt") for _ in range(20)]
    assert {1, 4} <= set(parts)
    engine.drain()
    guard = engine.scheduler.proxima_guard
    assert guard.failures_total == 0, guard.last_error
