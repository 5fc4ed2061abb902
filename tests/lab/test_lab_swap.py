"""What it is worth to keep the KV of those who yield, in the lab: docs/swap.md."""

from __future__ import annotations

from functools import cache
from typing import Any

from proxima_config.slo import SLO
from proxima_engine.lab.arms import arm
from proxima_engine.lab.experiment import run_arm
from proxima_engine.lab.profiles import profile
from proxima_engine.lab.requests import LabRequest, Workload
from proxima_engine.lab.setting import Setting


@cache
def measured(name: str, stall_s: float = 0.2) -> dict[str, Any]:
    """The preset `pressure` of `proxima bench` as it runs on a CPU, after four requests from which forecasts learn."""
    lesson = tuple(LabRequest(f"lesson{number}", 0.0, 32, 64, 512) for number in range(4))
    crowd = tuple(LabRequest(f"crowd{number}", 60.0, 32, 64, 512) for number in range(64))
    setting = Setting(Workload("pressure", lesson + crowd), profile("cpu-smollm2"), 44, 32, SLO(30, stall_s))
    return run_arm(arm(name), setting)


def test_nothing_is_computed_again():
    assert measured("native")["recomputed_tokens"] > 1000
    assert measured("proxima-swap")["recomputed_tokens"] == 0
    assert measured("proxima-swap")["preemptions"] > 0


def test_the_pool_stays_full_and_yet_nobody_stands_still_for_long():
    native, swap = measured("native"), measured("proxima-swap")
    assert native["stall_max_s"] > 10
    assert swap["stall_max_s"] <= 2.0
    assert swap["running_mean"] >= 0.9 * native["running_mean"]
    for figure in ("e2e_mean_s", "e2e_p95_s", "duration_s"):
        assert swap[figure] < native[figure], figure
    assert swap["duration_s"] < measured("proxima")["duration_s"]


def test_nobody_stands_still_for_longer_than_the_bound_where_the_target_is_looser():
    native, swap = measured("native", stall_s=5.0), measured("proxima-swap", stall_s=5.0)
    assert swap["stall_max_s"] <= 2.0
    assert swap["running_mean"] >= 0.9 * native["running_mean"]
    assert swap["duration_s"] < native["duration_s"]
