"""The forced output length: exact in the worker, and out of sight of everyone who schedules."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from stepping_engine import SteppingEngine, engine_config
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality

import proxima_engine.policy
import proxima_engine.scheduler
import proxima_engine.scheduling
import proxima_engine.scheduling.hints
from proxima_config.forced_length import FIELD, PROCESSOR
from proxima_engine.forced_length import ForcedLength
from proxima_engine.policy.view import Changes, RunningRequest, StartedRequest, StepView, WaitingRequest

END, OTHER_STOP, VOCABULARY = 2, 5, 8


def params(target: Any = None, **changes: Any) -> SamplingParams:
    made = SamplingParams(max_tokens=64, extra_args=None if target is None else {FIELD: target}, **changes)
    made.update_from_generation_config({"eos_token_id": [END, OTHER_STOP]}, END)
    return made


def processor() -> ForcedLength:
    return ForcedLength(None, torch.device("cpu"), False)  # type: ignore[arg-type]


def update(size: int, *, added=(), removed=(), moved=()) -> BatchUpdate:
    return BatchUpdate(batch_size=size, added=added, removed=removed, moved=moved)


def allowed(logits: torch.Tensor) -> list[set[int]]:
    return [set(torch.isfinite(row).nonzero().flatten().tolist()) for row in logits]


EVERYTHING = set(range(VOCABULARY))
NOT_THE_END = EVERYTHING - {END, OTHER_STOP}


@pytest.mark.parametrize("target", [1, 2, 7])
def test_the_end_comes_with_the_last_token_and_not_before(target):
    forced, output = processor(), []
    forced.update_state(update(1, added=[(0, params(target), [1], output)]))
    for count in range(1, target + 1):
        forced.update_state(None)
        (row,) = allowed(forced.apply(torch.zeros(1, VOCABULARY)))
        assert row == ({END} if count == target else NOT_THE_END)
        output.append(3)


def test_requests_without_a_length_are_left_alone():
    forced = processor()
    forced.update_state(update(2, added=[(0, params(), [1], []), (1, params(3), [1], [])]))
    assert allowed(forced.apply(torch.zeros(2, VOCABULARY))) == [EVERYTHING, NOT_THE_END]


def test_lengths_follow_their_requests_through_the_batch():
    forced = processor()
    short, long = (params(1), [1], []), (params(9), [1], [])
    forced.update_state(update(3, added=[(0, *short), (1, *long), (2, params(), [1], [])]))
    forced.update_state(update(3, moved=[(0, 1, MoveDirectionality.SWAP)]))
    assert allowed(forced.apply(torch.zeros(3, VOCABULARY))) == [NOT_THE_END, {END}, EVERYTHING]
    forced.update_state(update(2, removed=[0], moved=[(2, 0, MoveDirectionality.UNIDIRECTIONAL)]))
    assert allowed(forced.apply(torch.zeros(2, VOCABULARY))) == [EVERYTHING, {END}]


def test_a_preempted_request_continues_its_count():
    forced = processor()
    forced.update_state(update(1, added=[(0, params(4), [1], [3, 3, 3])]))
    assert allowed(forced.apply(torch.zeros(1, VOCABULARY))) == [{END}]


@pytest.mark.parametrize("target", [0, -1, 2.5, "8", True, [1]])
def test_a_length_that_is_none_is_refused(target):
    with pytest.raises(ValueError, match=f"{FIELD} must be a positive whole number"):
        ForcedLength.validate_params(params(target))


def test_a_length_excludes_ignore_eos():
    with pytest.raises(ValueError, match="ignore_eos"):
        ForcedLength.validate_params(params(4, ignore_eos=True))
    ForcedLength.validate_params(params(4))
    ForcedLength.validate_params(params(ignore_eos=True))


def test_its_name_for_the_flag_is_right():
    assert f"{ForcedLength.__module__}:{ForcedLength.__qualname__}" == PROCESSOR


class Tripwire(dict[str, Any]):
    """Extra arguments that fail whoever looks for the length, or at everything there is."""

    def _trip(self, *_: object) -> Any:
        raise AssertionError("the scheduler looked at the true output length")

    __iter__ = __len__ = __repr__ = __eq__ = items = values = keys = copy = _trip  # type: ignore[assignment]

    def __getitem__(self, key: str) -> Any:
        return self._trip() if key == FIELD else super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        return self._trip() if key == FIELD else super().get(key, default)

    def __contains__(self, key: object) -> bool:
        return self._trip() if key == FIELD else super().__contains__(key)


@pytest.mark.parametrize("overlap", [False, True], ids=["sync", "async"])
def test_scheduling_neither_reads_the_length_nor_depends_on_it(overlap):
    """Requests queue, pass each other and are preempted; the steps are the same whatever the true lengths are."""

    def steps(lengths: list[int]) -> list[tuple[dict[str, int], set[str]]]:
        engine = SteppingEngine(engine_config(overlap=overlap), blocks=12)
        for number, length in enumerate(lengths):
            request = engine.add(f"r{number}", prompt=40 + 30 * (number % 3), max_tokens=200)
            request.sampling_params.extra_args = Tripwire({FIELD: length})
        made = [engine.step() for _ in range(150)]
        assert engine.scheduler.get_request_counts()[1], "without a queue this shows nothing"
        return [(output.num_scheduled_tokens, output.preempted_req_ids or set()) for output in made]

    short, long = steps([1] * 12), steps([10 + 15 * number for number in range(12)])
    assert any(preempted for _, preempted in short), "without pressure this shows nothing"
    assert short == long


def test_the_policy_has_no_field_that_could_carry_it():
    seen = (StepView, Changes, StartedRequest, WaitingRequest)
    fields = {field.name for view in seen for field in dataclasses.fields(view)} | set(RunningRequest._fields)
    assert fields == {
        "now_s", "step_s", "free_blocks", "used_blocks", "blocks_total", "block_size", "slots", "list_running",
        "list_waiting", "in_flight", "exact_blocks", "changes", "denied", "restart", "arrived", "left", "started",
        "stopped", "request", "shared_blocks", "request_id", "key", "blocks", "growth_blocks", "started_s",
        "blocks_at_most", "not_ready", "prompt_tokens", "output_tokens", "cap_tokens", "ttft_s", "request_class",
        "total_s", "step_time", "swap_token_s", "adapter", "adapters", "adapter_slots",
    }  # fmt: skip


def test_no_source_of_the_scheduler_reaches_for_it():
    """Request parameters are out of bounds as a whole, but for the module that reads what the door says."""
    folders = [Path(next(iter(package.__path__))) for package in (proxima_engine.policy, proxima_engine.scheduling)]
    files = [
        Path(inspect.getfile(proxima_engine.scheduler)),
        *(file for each in folders for file in each.rglob("*.py")),
    ]
    assert len(files) > 5
    for file in files:
        forbidden = {"forced_length", "proxima_engine.forced_length", FIELD}
        if file != Path(inspect.getfile(proxima_engine.scheduling.hints)):
            forbidden |= {"sampling_params", "extra_args"}
        names = set()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names |= {getattr(node, key, None) for key in ("id", "attr", "name", "arg", "module")}
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                names.add(node.value)
        assert not names & forbidden, file
