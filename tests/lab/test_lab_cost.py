"""What a step costs: figures that can be checked by hand, and the fit to measured steps."""

from __future__ import annotations

import json
import random

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from proxima_config.errors import UsageError
from proxima_engine.lab import calibrate, profiles
from proxima_engine.lab.calibrate import Step
from proxima_engine.lab.cost import Device, Efficiency, Fitted, ModelShape, Roofline
from proxima_engine.scheduling.step_work import StepWork

PERFECT = Efficiency(memory=1, compute=1, link=1, step_s=0, sequence_s=0, collective_s=0, host_gap_s=0)
# 1 GB of weights, 1 MB of KV a token: round numbers.
MODEL = ModelShape(parameters=0.5e9, layers=1, hidden_size=1000, heads=1, kv_heads=1, head_size=250_000)
DEVICE = Device(memory_bytes_per_s=1e12, flops_per_s=1e14, link_bytes_per_s=1e10, host_bytes_per_s=2e10)
WORK = st.builds(
    StepWork,
    tokens=st.integers(1, 8192),
    sequences=st.integers(1, 256),
    context_tokens=st.integers(0, 100_000),
    attention_pairs=st.integers(0, 10**8),
)


def decode(sequences, context):
    return StepWork(sequences, sequences, sequences * context, sequences * (context + 1))


class TestRoofline:
    def test_one_token_reads_the_weights_and_its_context(self):
        step_s = Roofline(DEVICE, MODEL, PERFECT).step_s(decode(1, 999))
        assert step_s == pytest.approx(1e9 / 1e12 + 1000 * 1e6 / 1e12)

    def test_a_long_prompt_is_bound_by_operations(self):
        work = StepWork(tokens=8000, sequences=1, context_tokens=0, attention_pairs=0)
        assert Roofline(DEVICE, MODEL, PERFECT).step_s(work) == pytest.approx(
            2 * 0.5e9 * 8000 / 1e14 + 8000 * 1e6 / 1e12
        )

    def test_a_group_shares_the_work_and_pays_for_talking(self):
        work = decode(1, 999)
        alone, pair = (Roofline(DEVICE, MODEL, PERFECT, ranks).step_s(work) for ranks in (1, 2))
        # Two all-reduces of 2,000 bytes; a ring of two moves each once.
        assert pair == pytest.approx(alone / 2 + 2 * 2000 / 1e10)

    def test_a_copy_takes_as_long_as_its_bytes_on_the_bus(self):
        alone, pair = (Roofline(DEVICE, MODEL, PERFECT, ranks).copy_s(100) for ranks in (1, 2))
        assert alone == pytest.approx(100 * 1e6 / 2e10)
        # Each copies its own heads, over a bus of its own.
        assert pair == pytest.approx(alone / 2)

    @given(WORK)
    def test_more_work_never_takes_less_time(self, work):
        cost = profiles.profile("h100-llama2-7b").cost
        more = StepWork(work.tokens + 1, work.sequences + 1, work.context_tokens + 1, work.attention_pairs + 1)
        assert 0 < cost.step_s(work) <= cost.step_s(more)


class TestProfiles:
    def test_every_device_knows_every_model(self):
        for name in ("h100-llama2-7b", "h200-llama3-8b", "a100-llama3-70b-tp4", "l40s-llama3-8b"):
            assert profiles.profile(name).name == name

    def test_a_7b_model_on_an_h100_decodes_in_about_six_milliseconds(self):
        """13.5 GB at 3.35 TB/s are 4 ms at best."""
        step_s = profiles.profile("h100-llama2-7b").cost.step_s(decode(1, 100))
        assert 0.004 < step_s < 0.008

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("h100-lama2-7b", "did you mean h100-llama2-7b"),
            ("h100-llama2-7b-tp0", "at least one GPU"),
            ("missing.yaml", "cannot be read"),
        ],
    )
    def test_unknown_ones_are_explained(self, name, message):
        with pytest.raises(UsageError, match=message):
            profiles.profile(name)

    def test_a_file_that_is_none(self, tmp_path):
        path = tmp_path / "other.yaml"
        path.write_text("name: x\n")
        with pytest.raises(UsageError, match="no profile that `proxima lab calibrate` wrote"):
            profiles.profile(str(path))


TRUE = Fitted(step=0.02, token=1e-4, sequence=5e-4, context_token=2e-7, attention_pair=0.0, host_gap_s=0.003)


def logged(count=500, noise=0.0):
    """Steps of an engine whose cost is TRUE, one after the other."""
    rng = random.Random(7)
    now_s, steps = 100.0, []
    for _ in range(count):
        sequences = rng.randint(1, 64)
        tokens = sequences + rng.choice([0, 0, 0, rng.randint(1, 512)])
        context = rng.randint(10, 300) * sequences
        work = StepWork(tokens, sequences, context, context + tokens * rng.randint(1, 300))
        took_s = TRUE.step_s(work) * rng.uniform(1 - noise, 1 + noise)
        steps.append(Step(work, now_s - 0.001, now_s, now_s + took_s))
        now_s += took_s + TRUE.host_gap_s
    return steps


class TestCalibration:
    def test_the_true_cost_is_found(self):
        found = calibrate.calibrate(logged())
        assert found.median_error < 1e-6
        assert found.cost.step == pytest.approx(TRUE.step)
        assert found.cost.token == pytest.approx(TRUE.token)
        assert found.cost.host_gap_s == pytest.approx(TRUE.host_gap_s)

    def test_noise_costs_little_and_no_term_is_negative(self):
        found = calibrate.calibrate(logged(noise=0.2))
        assert abs(found.total_error) < 0.05
        assert found.median_error < 0.15
        terms = (found.cost.step, found.cost.token, found.cost.sequence, found.cost.context_token)
        assert min(*terms, found.cost.attention_pair) >= 0

    def test_time_in_which_nobody_asked_is_no_host_gap(self):
        steps = logged()
        late = [Step(s.work, s.started_s + 1000, s.scheduled_s + 1000, s.ended_s + 1000) for s in steps]
        assert calibrate.calibrate([*steps, *late]).cost.host_gap_s == pytest.approx(TRUE.host_gap_s)

    def test_too_few_steps(self):
        with pytest.raises(UsageError, match="99 steps are too few"):
            calibrate.calibrate(logged(99))

    def test_a_log_is_read_back_and_a_broken_line_is_named(self, tmp_path):
        path = tmp_path / "steps.jsonl"
        line = {"started_s": 1, "scheduled_s": 2, "ended_s": 3, "tokens": 4, "sequences": 1}
        line |= {"context_tokens": 5, "attention_pairs": 6}
        path.write_text(json.dumps(line) + "\n")
        assert calibrate.read(path) == [Step(StepWork(4, 1, 5, 6), 1, 2, 3)]
        path.write_text(json.dumps(line) + "\n{}\n")
        with pytest.raises(UsageError, match=r"steps.jsonl:2: not a line of a step log"):
            calibrate.read(path)


def test_a_written_profile_is_read_back(tmp_path):
    path = tmp_path / "mine.yaml"
    limits = {"max_num_batched_tokens": 4096, "max_num_seqs": 8, "async_scheduling": False}
    cost = {"step": 0.1, "token": 0.2, "sequence": 0.0, "context_token": 0.0, "attention_pair": 0.0, "host_gap_s": 0.0}
    path.write_text(yaml.safe_dump({"name": "mine", "cost": cost, "limits": limits}))
    found = profiles.profile(str(path))
    assert found.cost.step_s(StepWork(10, 1, 0, 0)) == pytest.approx(2.1)
    assert found.limits.max_num_seqs == 8
