"""What spares the lab time must not change what it finds: every record of a run is the same with and without."""

from __future__ import annotations

from dataclasses import replace

import pytest

from proxima_engine.lab import generators
from proxima_engine.lab.arms import ARMS, ArmContext
from proxima_engine.lab.engine import EngineShape, LabEngine
from proxima_engine.lab.profiles import profile
from proxima_engine.lab.simulate import Run, simulate

BLOCKS, BLOCK_SIZE = 200, 16
TRAFFIC = ("poisson:rate=20,requests=40", "shared-prefix:requests=20,rate=10")


def run(arm: str, spec: str, *, overlap: bool, shortcuts: bool) -> Run:
    workload = generators.parse(spec, pool_tokens=BLOCKS * BLOCK_SIZE)
    lengths = {each.request_id: each.output_tokens for each in workload.requests}
    context = ArmContext(ttft_s=2.0, stall_s=0.2, max_wait_s=75.0, true_lengths=lengths, seed=0)
    machine = profile("h100-llama2-7b")
    limits = replace(machine.limits, async_scheduling=overlap)
    shape = EngineShape(BLOCKS, BLOCK_SIZE, BLOCKS * BLOCK_SIZE, limits, ARMS[arm].watermark)
    engine = LabEngine(shape, machine.cost, ARMS[arm].make(context), shortcuts=shortcuts)
    return replace(simulate(engine, workload, longest_tokens=BLOCKS * BLOCK_SIZE), wall_s=0.0)


@pytest.mark.parametrize("overlap", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("arm", ["native", "gang", "proxima"])
def test_every_record_is_the_same_with_and_without_shortcuts(arm, overlap):
    """vLLM's own scheduler, one that idles steps and one that plans them; other arms differ in their policy only."""
    plain = [run(arm, spec, overlap=overlap, shortcuts=False) for spec in TRAFFIC]
    assert [run(arm, spec, overlap=overlap, shortcuts=True) for spec in TRAFFIC] == plain
    # The traffic reaches what the shortcuts must leave alone.
    assert arm == "proxima" or sum(each.preemptions for each in plain) > 0


def test_prompts_without_a_prefix_cache():
    """Blocks are then neither hashed nor cached."""
    shape = EngineShape(40, BLOCK_SIZE, 640, profile("h100-llama2-7b").limits, prefix_caching=False)
    workload = generators.parse("poisson:rate=50,requests=30,input=20-200,output=20-100", pool_tokens=640)
    context = ArmContext(ttft_s=2.0, stall_s=0.2, max_wait_s=75.0, true_lengths={}, seed=0)
    plain, short = (
        simulate(
            LabEngine(shape, profile("h100-llama2-7b").cost, ARMS["native"].make(context), shortcuts=shortcuts),
            workload,
            longest_tokens=640,
        )
        for shortcuts in (False, True)
    )
    assert plain.records == short.records
    assert plain.preemptions == short.preemptions > 0
