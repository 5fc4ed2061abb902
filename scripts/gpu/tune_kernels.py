"""Measure tiles for this GPU and write them where the kernels look: kernels/proxima_kernels/configs/DEVICE.json.

    PYTHONPATH=kernels python scripts/gpu/tune_kernels.py [--minutes 8]

Candidates run on shapes of current models; one that fails, or whose result is not that of the rule of thumb, is out.
The fastest over the shapes of an entry (geometric mean) is kept, with the time of the rule beside it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import torch
from problems import DRY_RUN, LONG_TAIL, MIXED, UNIFORM, Problem, Shape, make, shrunk
from rivals import Call
from time_kernels import graph_replays_us, versions

from proxima_kernels.configs import AttentionConfig, Phase, file_of, rule_of_thumb
from proxima_kernels.decode import decode_workspace, paged_decode_attention
from proxima_kernels.prefill import paged_prefill_attention, prefill_work_list

# (query heads, KV heads, head size): groups of 1, 4, 7 and 8 as Llama, Mistral, Qwen and their like have them.
MODELS = [(32, 8, 128), (28, 4, 128), (64, 8, 128), (32, 32, 128), (32, 8, 64), (16, 8, 256)]
DECODES = [UNIFORM, LONG_TAIL, MIXED, (32_768,)]
PREFILLS = [((2048,) * 4, 2048), ((4608,) * 8, 512)]


def candidates(phase: Phase) -> list[AttentionConfig]:
    """In random order, the same each time: there may be time for some of them only."""
    found = list(grid(phase))
    Random(0).shuffle(found)
    return found


def grid(phase: Phase) -> Iterator[AttentionConfig]:
    if phase == "decode":
        for kv, warps, stages, items in itertools.product((32, 64, 128), (2, 4, 8), (2, 3, 4), (2, 4, 8)):
            yield AttentionConfig(kv, 16, warps, stages, items)
    else:
        for kv, lanes, warps, stages in itertools.product((32, 64, 128), (64, 128), (4, 8), (2, 3)):
            yield AttentionConfig(kv, lanes, warps, stages)


def problems(phase: Phase, model: tuple[int, int, int], device: str) -> list[Problem]:
    heads, kv_heads, head_size = model
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_size": head_size}
    if phase == "decode":
        shapes = [Shape(f"{len(lengths)}", lengths, **sizes) for lengths in DECODES]
    else:
        shapes = [Shape(f"{len(lengths)}", lengths, query_len=new, **sizes) for lengths, new in PREFILLS]
    return [make(replace(shrunk(shape), **sizes) if DRY_RUN else shape, device) for shape in shapes]


def prepare(phase: Phase, problem: Problem, config: AttentionConfig, out: torch.Tensor) -> Call:
    shape, starts, lengths = problem.shape, problem.query_start_loc, problem.seq_lens
    sizes: tuple[Any, ...] = (shape.heads, shape.kv_heads, shape.head_size, shape.dtype)
    common = (problem.query, problem.cache, problem.block_table)
    if phase == "decode":
        workspace = decode_workspace(len(shape.lengths), 1, *sizes, lengths.device, config)
        workspace.fill(starts, lengths)
        arguments = (*common, lengths, out, problem.options)
        return lambda: paged_decode_attention(*arguments, workspace=workspace, config=config)
    tokens = int(problem.query.shape[0])
    work_list = prefill_work_list(starts, lengths, *sizes, max_tokens=tokens, config=config)
    arguments = (*common, starts, lengths, out, problem.options)
    return lambda: paged_prefill_attention(*arguments, max_tokens=tokens, work_list=work_list, config=config)


def score(
    phase: Phase, cases: Sequence[tuple[Problem, torch.Tensor]], config: AttentionConfig, timer: Callable[[Call], float]
) -> float:
    """Geometric mean of microseconds; infinite for a configuration that fails or computes something else."""
    total = 0.0
    try:
        for problem, expected in cases:
            out = torch.empty_like(expected)
            call = prepare(phase, problem, config, out)
            call()
            if not torch.allclose(out.float(), expected.float(), rtol=3e-2, atol=3e-2):
                return math.inf
            total += math.log(timer(call))
    except Exception:  # noqa: BLE001 - more shared memory or registers than there are
        return math.inf
    return math.exp(total / len(cases))


def entry(
    phase: Phase,
    model: tuple[int, int, int],
    device: str,
    timer: Callable[[Call], float],
    deadline: float,
    tried: Sequence[AttentionConfig],
) -> dict[str, Any]:
    """The best of `tried` for one model until the deadline (`time.monotonic`), the rule of thumb first."""
    heads, kv_heads, head_size = model
    rule = rule_of_thumb(phase, torch.bfloat16, head_size)
    cases = []
    for problem in problems(phase, model, device):
        expected = torch.empty_like(problem.query)
        prepare(phase, problem, rule, expected)()
        cases.append((problem, expected))
    scores = {rule: score(phase, cases, rule, timer)}
    for config in tried:
        if time.monotonic() > deadline:
            break
        if config not in scores:
            scores[config] = score(phase, cases, config, timer)
    best = min(scores, key=lambda config: scores[config])
    return {
        "phase": phase,
        "dtype": "bfloat16",
        "head_size": head_size,
        "group": heads // kv_heads,
        "config": asdict(best),
        "us": round(scores[best], 2),
        "rule_us": round(scores[rule], 2),
        "tried": len(scores),
    }


def tune(name: str, device: str, timer: Callable[[Call], float], minutes: float) -> Path:
    """Measure, and write the file of the device of that name. Each entry has the same share of the time."""
    work: list[tuple[Phase, tuple[int, int, int]]] = [
        (phase, model) for model in MODELS for phase in ("decode", "prefill")
    ]
    end = time.monotonic() + 60 * minutes
    entries = []
    for index, (phase, model) in enumerate(work):
        now = time.monotonic()
        share = now + (end - now) / (len(work) - index)
        entries.append(entry(phase, model, device, timer, share, candidates(phase)))
        print(entries[-1], flush=True)
    made = {
        "device": name,
        "made": f"scripts/gpu/tune_kernels.py --minutes {minutes:g}",
        "date": datetime.now(UTC).date().isoformat(),
        "versions": list(versions()),
        "entries": entries,
    }
    path = file_of(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    print(f"tune_kernels: wrote {path}")
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8.0)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("tune_kernels: no GPU here; nothing was measured", file=sys.stderr)
        return 1
    tune(torch.cuda.get_device_name(), "cuda", graph_replays_us, arguments.minutes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
