"""vLLM's own schedulers in virtual time: exact clocks, nothing lost, the same again for the same seed."""

from __future__ import annotations

import pytest

from proxima_engine.lab import generators
from proxima_engine.lab.arms import ARMS, ArmContext
from proxima_engine.lab.cost import Fitted
from proxima_engine.lab.engine import EngineShape, LabEngine, LabError
from proxima_engine.lab.profiles import Limits
from proxima_engine.lab.requests import LabRequest, Workload
from proxima_engine.lab.simulate import simulate

STEP_S, GAP_S = 0.1, 0.02
STEADY = Fitted(step=STEP_S, token=0, sequence=0, context_token=0, attention_pair=0, host_gap_s=GAP_S)
BLOCK_SIZE = 16
ADVERSARIAL = ("giant-head", "same-length-wave", "far-cap", "drift")


def engine(arm="native", *, blocks=64, overlap=False, batch=512, true_lengths=None, **shape):
    limits = Limits(max_num_batched_tokens=batch, max_num_seqs=32, async_scheduling=overlap)
    spec = ARMS[arm]
    longest = blocks * BLOCK_SIZE
    context = ArmContext(ttft_s=2.0, stall_s=0.2, max_wait_s=75.0, true_lengths=true_lengths or {}, seed=0)
    host_blocks = round(spec.host_blocks * blocks)
    shape = EngineShape(blocks, BLOCK_SIZE, longest, limits, spec.watermark, host_blocks=host_blocks, **shape)
    return LabEngine(shape, STEADY, spec.make(context))


def run(lab, *requests, concurrency=None, longest=None):
    workload = Workload("test", tuple(requests), concurrency)
    return simulate(lab, workload, longest_tokens=longest or lab.blocks * BLOCK_SIZE)


def request(name, arrival_s=0.0, input_tokens=20, output_tokens=5, cap_tokens=100, **fields):
    return LabRequest(name, arrival_s, input_tokens, output_tokens, cap_tokens, **fields)


def test_a_class_in_the_trace_is_told_to_the_scheduler():
    """One of 40 blocks runs; behind it waits a crowd that fits one at a time, the urgent one last."""
    crowd = [request(f"r{number}", 0.2, 40 * BLOCK_SIZE, request_class="flex") for number in range(3)]
    urgent = request("urgent", 0.3, 40 * BLOCK_SIZE, request_class="priority")
    records = run(engine("proxima"), request("runs", 0.0, 40 * BLOCK_SIZE), *crowd, urgent).records
    first_token_s = {name: record.sent_s + record.ttft_s for name, record in zip("r012u", records, strict=True)}
    assert sorted(first_token_s, key=first_token_s.__getitem__)[:2] == ["r", "u"]


class TestClock:
    def test_one_step_after_the_other(self):
        (seen,) = run(engine(), request("a", arrival_s=1.0)).records
        # The output is handled after the step, and the next step is planned after that.
        assert seen.ttft_s == pytest.approx(STEP_S + GAP_S)
        assert seen.stall_s == pytest.approx(STEP_S + GAP_S)
        assert seen.e2e_s == pytest.approx(5 * (STEP_S + GAP_S))
        assert seen.tokens == 5

    def test_planning_a_step_while_another_runs_hides_the_gap(self):
        (seen,) = run(engine(overlap=True), request("a", arrival_s=1.0)).records
        assert seen.ttft_s == pytest.approx(STEP_S)
        assert seen.e2e_s == pytest.approx(5 * STEP_S)
        assert seen.tokens == 5

    def test_a_long_prompt_takes_several_steps(self):
        (seen,) = run(engine(batch=100), request("a", input_tokens=250)).records
        assert seen.ttft_s == pytest.approx(3 * (STEP_S + GAP_S))

    def test_a_request_waits_for_the_step_that_runs_when_it_comes(self):
        _, second = run(engine(), request("a"), request("b", arrival_s=0.01)).records
        assert second.ttft_s == pytest.approx(2 * (STEP_S + GAP_S) - 0.01)

    def test_a_closed_loop_keeps_its_number_in_flight(self):
        requests = [request(str(number)) for number in range(6)]
        records = run(engine(), *requests, concurrency=2).records
        lasted_s = 5 * (STEP_S + GAP_S)
        assert [record.sent_s for record in records] == pytest.approx(
            [0, 0, lasted_s, lasted_s, 2 * lasted_s, 2 * lasted_s]
        )


class TestMemory:
    def test_a_pool_that_is_too_small_preempts_and_computes_again(self):
        requests = [request(str(number), input_tokens=60, output_tokens=200, cap_tokens=400) for number in range(8)]
        seen = run(engine(blocks=40), *requests)
        assert seen.preemptions > 0
        assert seen.recomputed_tokens > 0
        assert all(record.tokens == 200 for record in seen.records)

    def test_an_equal_prefix_is_computed_once(self):
        shared = [request(n, arrival_s=at, input_tokens=600, prefix_hash_ids=(7,)) for n, at in (("a", 0), ("b", 9))]
        other = [shared[0], request("b", arrival_s=9, input_tokens=600, prefix_hash_ids=(8,))]
        with_cache, without, different = (
            run(engine(batch=100, prefix_caching=caching), *requests).records[1].ttft_s
            for caching, requests in ((True, shared), (False, shared), (True, other))
        )
        assert with_cache == pytest.approx(STEP_S + GAP_S)
        assert without == different == pytest.approx(6 * (STEP_S + GAP_S))

    def test_a_prompt_longer_than_the_context_is_refused(self):
        long, short = run(engine(), request("a", input_tokens=2000), request("b")).records
        assert long.refused
        assert long.ended_s is None
        assert short.tokens == 5

    def test_an_answer_ends_at_its_declared_cap(self):
        (seen,) = run(engine(), request("a", output_tokens=50, cap_tokens=10)).records
        assert seen.tokens == 10

    def test_a_lost_request_is_noticed(self):
        lab = engine()
        lab.add(request("a"))
        lab.advance()
        with pytest.raises(LabError, match="1 requests have not ended"):
            lab.check_integrity()


@pytest.mark.parametrize("overlap", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_ends_every_request_and_returns_every_block(arm, overlap):
    """On each kind of traffic that is meant to hurt; `simulate` checks the pool at the end."""
    for kind in ADVERSARIAL:
        workload = generators.parse(f"{kind}:requests=20", pool_tokens=200 * BLOCK_SIZE)
        lengths = {each.request_id: each.output_tokens for each in workload.requests}
        lab = engine(arm, blocks=200, overlap=overlap, batch=2048, true_lengths=lengths)
        seen = simulate(lab, workload, longest_tokens=200 * BLOCK_SIZE)
        fits = [each for each in seen.records if not each.refused]
        assert fits
        for record in fits:
            room = 200 * BLOCK_SIZE - record.request.input_tokens
            assert record.tokens == min(record.request.output_tokens, room)
