"""Alerts and recording rules: each alert fires and does not fire, in the real Prometheus' own unit tests."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart import CHART

from proxima_config.monitoring.rules import ALERTS

RULES = CHART / "files" / "rules.yaml"
RUNBOOK = CHART.parents[2] / "docs" / "operations.md"
LABELS = 'namespace="prod",job="llm",pod="llm-1",instance="10.0.0.1:8001"'


@dataclass(frozen=True)
class Case:
    """Series in promtool's notation (a value a minute) with which the alert fires at a minute, and with which not."""

    alert: str
    fires: dict[str, str]
    quiet: dict[str, str]
    minute: int


def counter(name: str, a_minute: float, minutes: int, more: str = "") -> dict[str, str]:
    return {f"{name}{{{LABELS}{more}}}": f"0+{a_minute}x{minutes}"}


def gauge(name: str, value: float | str, minutes: int, more: str = "") -> dict[str, str]:
    text = value if isinstance(value, str) else f"{value}+0x{minutes}"
    return {f"{name}{{{LABELS}{more}}}": text}


def ended(ok: float, failed: float, minutes: int) -> dict[str, str]:
    name = "proxima_requests_total"
    return counter(name, ok, minutes, ',class="default",outcome="ok"') | counter(
        name, failed, minutes, ',class="default",outcome="failed"'
    )


def waiting(value: float | str, minutes: int, reason: str = "blocks") -> dict[str, str]:
    labels = f',engine="0",reason="{reason}",class="default"'
    return gauge("proxima_scheduler_waiting", value, minutes, labels) | gauge(
        "proxima_door_waiting_requests", 0, minutes, ',class="default"'
    )


def blocks(used: float, minutes: int) -> dict[str, str]:
    return gauge("proxima_kv_blocks", 100, minutes, ',engine="0"') | gauge(
        "proxima_kv_blocks_used", used, minutes, ',engine="0"'
    )


def gaps(long: float, minutes: int) -> dict[str, str]:
    """A hundred gaps a minute, of which `long` take six seconds."""
    name = "proxima_inter_token_seconds_bucket"
    return (
        counter(name, 100 - long, minutes, ',class="default",le="5"')
        | counter(name, 100, minutes, ',class="default",le="10"')
        | counter(name, 100, minutes, ',class="default",le="+Inf"')
    )


def policy(state: str, kind: str = "proxima") -> dict[str, str]:
    states = {each: 1 if each == state else 0 for each in ("ok", "degraded", "native")}
    series = gauge("proxima_scheduler_info", 1, 5, f',kind="{kind}"')
    for each, value in states.items():
        series |= gauge("proxima_policy_state", value, 5, f',engine="0",state="{each}"')
    return series


def draining(remaining: float, seconds: float) -> dict[str, str]:
    return (
        gauge("proxima_draining", 1, 5)
        | gauge("proxima_drain_remaining_requests", remaining, 5)
        | gauge("proxima_drain_remaining_seconds", seconds, 5)
    )


def gpu(value: float | str, minutes: int) -> dict[str, str]:
    return gauge("DCGM_FI_DEV_GPU_UTIL", value, minutes, ',gpu="0"')


def up(value: float, draining: float = 0) -> dict[str, str]:
    return gauge("proxima_engine_up", value, 40) | gauge("proxima_draining", draining, 40)


CASES = [
    Case("ProximaNotServing", up(0), up(0, draining=1), 35),
    Case("ProximaEngineHung", gauge("proxima_engine_stalled_seconds", "0+60x5", 5),
         gauge("proxima_engine_stalled_seconds", 29, 5), 5),
    Case("ProximaEngineRestarted", gauge("proxima_engine_restarts_total", "0 0 1 1 1", 0),
         gauge("proxima_engine_restarts_total", 3, 5), 4),
    Case("ProximaErrorBudgetFast", ended(80, 20, 90), ended(90, 10, 90), 80),
    Case("ProximaErrorBudgetSlow", ended(93, 7, 500), ended(95, 5, 500), 450),
    Case("ProximaQueueGrows", waiting("0+2x40", 40), waiting(60, 40), 40),
    Case("ProximaOverloaded", gauge("proxima_estimated_start_seconds", 12, 10, ',engine="0",class="default"'),
         gauge("proxima_estimated_start_seconds", 9, 10, ',engine="0",class="default"'), 8),
    Case("ProximaKvPressure", blocks(97, 20) | waiting(3, 20), blocks(97, 20) | waiting(3, 20, "class_limit"), 15),
    Case("ProximaStreamsStall", gaps(2, 30), gaps(0.5, 30), 20),
    Case("ProximaPolicyOff", policy("degraded"), policy("native", kind="native"), 2),
    Case("ProximaDrainOverrun", draining(2, 4), draining(2, 60), 2),
    Case("ProximaGpuIdleWhileQueued", gpu(0, 10) | waiting(1, 10), gpu(0, 10) | waiting(0, 10), 5),
    Case("ProximaGpuUnderused", gpu(30, 500), gpu(70, 500), 450),
    Case("ProximaGpuError", gauge("DCGM_FI_DEV_XID_ERRORS", 79, 5, ',gpu="0"'),
         gauge("DCGM_FI_DEV_XID_ERRORS", 0, 5, ',gpu="0"'), 2),
]  # fmt: skip


def _run(promtool: Path, *arguments: object) -> str:
    ended = subprocess.run([promtool, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_prometheus_takes_the_rules(promtool: Path):
    assert f"{len(ALERTS) + 2} rules found" in _run(promtool, "check", "rules", RULES)


def test_each_alert_has_a_case():
    assert {case.alert for case in CASES} == {alert.name for alert in ALERTS}


@pytest.mark.parametrize("interval_minutes", [pytest.param(1, id="minutes"), pytest.param(15, id="hours")])
def test_every_alert_fires_and_does_not_fire(promtool: Path, tmp_path: Path, interval_minutes: int):
    """Those that take hours are looked at less often, which saves Prometheus seconds of work."""
    cases = [case for case in CASES if (case.minute > 100) == (interval_minutes > 1)]
    tests = [part for case in cases for part in (_test(case, case.fires, 1), _test(case, case.quiet, 0))]
    tests += [_recordings()] if interval_minutes == 1 else []
    file = tmp_path / "tests.yaml"
    every = f"{interval_minutes}m"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": every, "tests": tests}))
    assert "SUCCESS" in _run(promtool, "test", "rules", file)


def _test(case: Case, series: dict[str, str], alerts: int) -> dict[str, Any]:
    """One unit test. It counts the series of ALERTS, which promtool records like Prometheus itself."""
    question = f'count(ALERTS{{alertname="{case.alert}",alertstate="firing",namespace="prod"}}) or vector(0)'
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": question, "eval_time": f"{case.minute}m", "exp_samples": [{"labels": "{}", "value": alerts}]}
        ],
    }


def _recordings() -> dict[str, Any]:
    def sample(name: str, value: float) -> dict[str, Any]:
        expected = [{"labels": f"{name}{{{LABELS}}}", "value": value}]
        return {"expr": name, "eval_time": "2m", "exp_samples": expected}

    series = blocks(50, 5) | waiting(3, 5)
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [sample("proxima:queue_requests", 3), sample("proxima:kv_used_percent", 50)],
    }


def test_every_alert_links_to_a_chapter_of_the_runbook():
    headings = re.findall(r"^#+ (.+)$", RUNBOOK.read_text(), re.MULTILINE)
    chapters = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert {alert.runbook for alert in ALERTS} <= chapters


def test_every_alert_is_in_the_runbook():
    text = RUNBOOK.read_text()
    assert [alert.name for alert in ALERTS if f"`{alert.name}`" not in text] == []
