"""A program: requests one at a time on the real engine, first left alone, then made to yield at random steps.

Prints JSON: the texts of both, and what the copies came to. Usage: forced_swaps.py MODEL_FOLDER
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig

from proxima_engine.launch import CPU_WORKER
from proxima_engine.policy.plan import Plan, YieldMode
from proxima_engine.policy.protocol import Policy
from proxima_engine.policy.view import StepView
from proxima_engine.scheduler import ProximaScheduler
from proxima_engine.scheduling.options import SchedulerOptions
from proxima_engine.swap.setup import CONNECTOR, CONNECTOR_MODULE, HOST_BYTES

TOKENS = 80
YIELDS = {"alone": 0.0, "forced": 0.25}
"""Share of the steps in which the request yields."""


class Forced:
    """Whoever waits starts; whoever runs yields as often as it is told."""

    share = 0.0

    def __init__(self) -> None:
        self._random = random.Random(0)

    def plan(self, view: StepView) -> Plan:
        if view.running and self._random.random() < self.share:
            return Plan(order=(), yields=((view.running[0].request_id, YieldMode.SWAP),))
        return Plan(order=tuple(request.request_id for request in view.waiting))


class ForcedScheduler(ProximaScheduler):
    def _make_policy(self, options: SchedulerOptions) -> Policy:
        return Forced()


def texts(llm: LLM, prompts: list[dict[str, Any]], sampling: Callable[[int], SamplingParams]) -> list[list[int]]:
    found = []
    for number, prompt in enumerate(prompts):
        (answer,) = llm.generate([prompt], sampling(number), use_tqdm=False)
        found.append(list(answer.outputs[0].token_ids))
    return found


def main(model: str) -> None:
    llm = LLM(
        model=model,
        max_model_len=1024,
        num_gpu_blocks_override=40,
        block_size=32,
        kv_cache_memory_bytes=100_000_000,
        # Prompts are computed in several steps, and yield between two of them too.
        max_num_batched_tokens=128,
        enforce_eager=True,
        # Or blocks would mostly come back from there.
        enable_prefix_caching=False,
        disable_log_stats=False,
        scheduler_cls=ForcedScheduler,
        worker_cls=CPU_WORKER,
        kv_transfer_config=KVTransferConfig(
            kv_connector=CONNECTOR,
            kv_connector_module_path=CONNECTOR_MODULE,
            kv_role="kv_producer",
            kv_connector_extra_config={HOST_BYTES: 100_000_000},
        ),
    )
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    prompts = [
        {"prompt_token_ids": [(7 * number + place) % 250 + 2 for place in range(290 + number)]} for number in range(3)
    ]
    kinds: dict[str, Callable[[int], SamplingParams]] = {
        "greedy": lambda _: SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True),
        "seeded": lambda number: SamplingParams(temperature=1, seed=number, max_tokens=TOKENS, ignore_eos=True),
    }
    found: dict[str, Any] = {}
    for name, share in YIELDS.items():
        Forced.share = share
        found[name] = {kind: texts(llm, prompts, sampling) for kind, sampling in kinds.items()}
    swap = scheduler.proxima_swap
    found["counters"] = asdict(swap.counters)
    found["host_blocks_used"] = swap.ledger.blocks_used
    found["policy_failures"] = scheduler.proxima_guard.failures_total
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
