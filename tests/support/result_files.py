"""Results as `bench serve`, `bench compare` and the lab print them, small enough to check by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from proxima_bench.exchange import Exchange, Outcome
from proxima_bench.figures import figures
from proxima_bench.loads import Load
from proxima_bench.runner import Run
from proxima_bench.timeline import timeline
from proxima_config.slo import SLO

TARGETS = SLO(ttft_s=2.0, stall_s=0.5)


def write(path: Path, result: Any) -> Path:
    path.write_text(json.dumps(result), encoding="utf-8")
    return path


def served(
    *,
    outcomes: tuple[str, ...] = ("completed",) * 4,
    gap_s: float = 0.1,
    codes: dict[str, int] | None = None,
    rate_rps: float | None = None,
) -> dict[str, Any]:
    """A request each second; each answer is ten tokens, with one gap of ``gap_s`` in the middle."""
    exchanges = []
    for number, name in enumerate(outcomes):
        sent_s, outcome = 100.0 + number, Outcome(name)
        each = Exchange(number, 0, 10, sent_s=sent_s, ended_s=sent_s + 0.05, outcome=outcome)
        if outcome is Outcome.COMPLETED:
            gaps = [0.5, *[0.1] * 4, gap_s, *[0.1] * 4]
            each.token_times_s = [sent_s + sum(gaps[: place + 1]) for place in range(10)]
            each.ended_s, each.usage_tokens = each.token_times_s[-1], 10
        else:
            each.code = next(iter(codes or {"http_429": 1}))
        exchanges.append(each)
    run = Run(exchanges, 100.0, max(each.ended_s for each in exchanges))
    shape = {"kind": "constant", "rate_rps": rate_rps} if rate_rps else {"kind": "closed", "concurrency": 4}
    load = Load(slo_ttft_s=TARGETS.ttft_s, slo_stall_s=TARGETS.stall_s, shape=shape)
    series = {"time_s": [0.0, 2.0, 4.0], "kv_use": [0.1, 0.9, 0.5], "running": [0, 2, 1]}
    return {
        **figures(run, TARGETS),
        "client": {"cpu_share": 0.1, "lag_s": {"p99": 0.001}},
        "server": {
            "preemptions": 3,
            "kv_use": {"mean": 0.5, "max": 0.9},
            "running": {"mean": 1.0, "max": 2.0},
            "series": series,
        },
        "load": {
            **load.model_dump(mode="json", exclude={"compare"}),
            "arrivals": load.shape.describe(),
            "url": "http://h",
            "model": "tiny",
        },
        "warnings": [],
        "timeline": timeline(run, TARGETS),
    }


def compared(*, arms: tuple[str, str] = ("native", "proxima")) -> dict[str, Any]:
    """Two rounds of a closed loop: the first arm refuses one request and stalls others."""
    rounds = [
        (arms[0], 1, served(outcomes=("completed", "refused", "completed", "completed"))),
        (arms[1], 1, served()),
        (arms[0], 2, served(gap_s=0.9)),
        (arms[1], 2, served()),
    ]
    rounds[2][2]["timeline"]["stall_s"][2:] = [0.1, 0.1]
    rounds[0][2]["timeline"]["stall_s"][0] = 0.1
    for _, _, report in rounds[:3:2]:
        report["attainment"] = 0.5
    for _, _, report in rounds[1::2]:
        report["attainment"] = 0.75
    ratio = {"value": 1.5, "low": 1.2, "high": 1.8}
    return {
        "machine": {
            "cpu": "Test",
            "instructions": None,
            "cores": 2,
            "memory_gib": 4,
            "gpus": [],
            "python": "3.11",
            "versions": {},
        },
        "baseline": arms[0],
        "cases": [{"name": "", "arms": {arms[0]: {}, arms[1]: {"attainment": {"ratio": ratio}}}}],
        "warnings": [],
        "measurements": [{"case": "", "arm": arm, "round": number, "report": each} for arm, number, each in rounds],
    }


def tuned() -> dict[str, Any]:
    """What `proxima tune` keeps: a comparison, and the trials before it."""
    trials = {
        "native": {"status": "measured", "reason": "", "value": 100.0, "kv_full": True},
        "proxima": {"status": "measured", "reason": "", "value": 110.0, "kv_full": True},
        "proxima --max-num-seqs=4096": {
            "status": "out_of_memory",
            "reason": "MemoryError",
            "value": 0.0,
            "kv_full": False,
        },
    }
    return {**compared(), "tune": {"fingerprint": "x", "objective": "output_tokens_per_s", "trials": trials}}


def profiled() -> dict[str, Any]:
    """What `bench profile` finds: steps every tenth of a second, with and without a prompt."""
    times = {"duration_s": 0.08, "forward_s": 0.06, "decodes": 12, "decode_tokens": 12}
    prompts = [{"prompts": 1, "prompt_tokens": 64}, *[{"prompts": 0, "prompt_tokens": 0}] * 2]
    steps = [{"start_s": at / 10, **times, **prompts[at % 3]} for at in range(20)]
    operators = [{"name": "aten::addmm", "total_s": 1.2, "calls": 400}]
    capture = {"duration_s": 2.1, "steps": steps, "operators": operators, "device": "cpu"}
    return {
        "machine": compared()["machine"],
        "load": served()["load"],
        "tool": "torch",
        "after_s": 15.0,
        "files": {arm: [f"/profile/{arm}/rank-0.pt.trace.json.gz"] for arm in ("native", "proxima")},
        "captures": dict.fromkeys(("native", "proxima"), capture),
    }


def lab_compared() -> dict[str, Any]:
    return {"setting": _SETTING, "arms": {arm: _figures(0.8, with_timeline=True) for arm in ("native", "proxima")}}


def lab_sweep() -> dict[str, Any]:
    def curve(shares: tuple[float, ...]) -> dict[str, Any]:
        return {
            "attainment": list(shares),
            "e2e_p99_s": [4.0] * len(shares),
            "load_at_90": 1.1,
            "bisected": [[1.25, 0.85]],
            "figures": [_figures(share) for share in shares],
        }

    arms = {"native": curve((1.0, 0.9, 0.2)), "proxima": curve((1.0, 0.95, 0.6))}
    return {"setting": _SETTING, "loads": [0.5, 1.0, 1.5], "arms": arms}


_SETTING = {"sentence": "a trace: 100 requests", "slo": {"ttft_s": 2.0, "stall_s": 0.5}}


def _figures(attainment: float, *, with_timeline: bool = False) -> dict[str, Any]:
    found = {
        "cheats": False, "requests": 100, "refused": 1, "attainment": attainment, "goodput_rps": 1.0, "qps": 1.2,
        "output_tokens_per_s": 90.0, "output_tokens_per_s_arriving": None, "ttft_p50_s": 0.1, "ttft_p99_s": 3.0,
        "e2e_mean_s": 2.0, "e2e_p95_s": 3.0, "e2e_p99_s": 4.0, "stall_p95_s": 0.2, "stall_max_s": 0.4,
        "preemptions": 2, "recomputed_tokens": 0, "pool_use_mean": 0.6, "running_mean": 7.0, "duration_s": 80.0,
        "steps": 1000, "schedule_us_mean": None,
    }  # fmt: skip
    return {**found, "timeline": served()["timeline"]} if with_timeline else found
