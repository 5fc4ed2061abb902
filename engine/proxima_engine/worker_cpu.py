"""vLLM's CPU worker, with seeded sampling that survives chunked prefill.

The reasons are in docs/decisions/0005-seeded-sampling-on-cpu.md.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker

from proxima_engine.seeded_generator import RewindableGenerator


class ProximaCPUWorker(CPUWorker):
    """Named in `worker_cls`, so it needs no patch of vLLM."""

    def sample_tokens(self, grammar_output: Any) -> Any:
        # The model runner has updated its batch in execute_model and draws in sample_tokens.
        if not self.use_v2_model_runner:
            _make_rewindable(self.model_runner)
        return super().sample_tokens(grammar_output)


def _make_rewindable(runner: Any) -> None:
    """Replace the generators of new seeded requests by ours and mark all of them before the draw.

    The batch and the request's own state hold the same generator: a preempted request leaves the batch and comes back
    with the one in its state.
    """
    batch = runner.input_batch
    for index, current in batch.generators.items():
        if isinstance(current, RewindableGenerator):
            current.mark()
            continue
        rewindable = RewindableGenerator.take_over(current)
        rewindable.mark()
        batch.generators[index] = rewindable
        runner.requests[batch.req_ids[index]].generator = rewindable
