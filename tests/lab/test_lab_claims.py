"""What docs/scheduling.md says Proxima wins, in the lab: deterministic but for the last bits of floating point, which
differ between processors and can move a handful of requests. The bounds leave room for that and no more."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from proxima_config.slo import SLO
from proxima_config.traces import AZURE_CUT
from proxima_engine.lab import traces
from proxima_engine.lab.arms import ARMS, arm
from proxima_engine.lab.experiment import run_arm
from proxima_engine.lab.profiles import profile
from proxima_engine.lab.setting import Setting
from proxima_engine.policy.calibration import TARGET

pytestmark = pytest.mark.slow


@cache
def measured(name: str, model: str = "h100-llama2-7b", **changes: Any) -> dict[str, Any]:
    workload = traces.read(Path(AZURE_CUT), traces.Changes(**changes))
    setting = Setting(workload, profile(model), blocks=1500, block_size=16, slo=SLO(ttft_s=2.0, stall_s=0.2))
    return run_arm(arm(name), setting)


def test_with_more_load_than_the_pool_carries_most_are_still_on_time():
    native, proxima = measured("native", rate_scale=1.5), measured("proxima", rate_scale=1.5)
    assert proxima["goodput_rps"] >= 8 * native["goodput_rps"]
    assert proxima["goodput_rps"] >= measured("deadline-watermark", rate_scale=1.5)["goodput_rps"]
    assert proxima["e2e_p99_s"] <= 1.3 * native["e2e_p99_s"]
    assert proxima["e2e_mean_s"] < native["e2e_mean_s"]
    assert proxima["preemptions"] <= 0.05 * native["preemptions"]
    assert proxima["output_tokens_per_s_arriving"] >= 0.98 * native["output_tokens_per_s_arriving"]


@pytest.mark.parametrize("name", [each.name for each in ARMS.values() if not (each.cheats or "proxima" in each.name)])
def test_no_arm_that_does_not_cheat_has_more_goodput_then(name: str):
    """docs/lab.md, Readings."""
    assert measured("proxima", rate_scale=1.5)["goodput_rps"] >= measured(name, rate_scale=1.5)["goodput_rps"]


def test_forecasts_are_exceeded_as_often_as_agreed():
    proxima = measured("proxima", rate_scale=1.5)
    assert proxima["forecasts_checked"] > 400
    assert proxima["forecasts_exceeded"] / proxima["forecasts_checked"] == pytest.approx(TARGET, abs=0.01)


def test_nine_of_ten_attain_at_a_fifth_more_load_than_under_native():
    """docs/lab.md, Load at 90 %: more than 1.2 times lies between these two."""
    assert measured("native", rate_scale=0.95)["attainment"] < 0.9
    assert measured("proxima", rate_scale=1.15)["attainment"] >= 0.9


def test_the_readings_of_native_and_of_the_simple_rule():
    """docs/lab.md, Readings."""
    native, simple = measured("native", rate_scale=1.5), measured("deadline-watermark", rate_scale=1.5)
    assert native["attainment"] == pytest.approx(0.081, abs=0.01)
    assert simple["goodput_rps"] / native["goodput_rps"] == pytest.approx(9.1, abs=0.6)
    assert measured("native")["attainment"] == pytest.approx(0.861, abs=0.02)


def test_with_half_the_load_nothing_is_lost():
    native, proxima = measured("native", rate_scale=0.5), measured("proxima", rate_scale=0.5)
    for figure in ("attainment", "goodput_rps", "qps", "output_tokens_per_s"):
        assert proxima[figure] >= 0.99 * native[figure], figure
    for figure in ("ttft_p50_s", "ttft_p99_s", "e2e_mean_s", "e2e_p95_s", "e2e_p99_s", "stall_p95_s", "stall_max_s"):
        assert proxima[figure] <= 1.01 * native[figure], figure


def test_with_swap_long_answers_are_as_fluent_as_without_and_end_as_early_as_under_native():
    """docs/swap.md."""
    changes = {"limit": 400, "rate_scale": 0.4, "input_scale": 0.5, "output_scale": 4.0, "cap_tokens": 4096}
    native, swap = (measured(name, model="h100-llama3-8b", **changes) for name in ("native", "proxima-swap"))
    assert swap["attainment"] >= 0.65
    assert swap["stall_max_s"] <= 2
    assert swap["e2e_mean_s"] <= native["e2e_mean_s"]
    assert swap["output_tokens_per_s_arriving"] >= 0.99 * native["output_tokens_per_s_arriving"]


def test_long_answers_are_forecast():
    changes = {"limit": 400, "rate_scale": 0.4, "input_scale": 0.5, "output_scale": 4.0, "cap_tokens": 4096}
    native, proxima = measured("native", **changes), measured("proxima", **changes)
    assert proxima["attainment"] >= 0.57
    assert proxima["attainment"] >= measured("deadline-watermark", **changes)["attainment"]
    assert proxima["attainment"] >= 1.7 * native["attainment"]
    assert proxima["preemptions"] <= 0.08 * native["preemptions"]
