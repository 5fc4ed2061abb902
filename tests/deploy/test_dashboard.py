"""The Grafana dashboard: its structure, and that Prometheus can read what it asks."""

from __future__ import annotations

import json
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml
from chart import CHART

from proxima_config.metrics_catalogue import METRICS
from proxima_config.monitoring.dashboard import ROWS

BOARD: dict[str, Any] = json.loads((CHART / "files" / "dashboard.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    return [target["expr"] for panel in PANELS for target in panel["targets"]]


def test_panels_lie_beside_each_other_on_grafanas_grid():
    places = [panel["gridPos"] for panel in BOARD["panels"]]
    assert all(place["x"] >= 0 and place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below


def test_panels_have_numbers_titles_and_the_chosen_data_source():
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    assert [row.title for row in ROWS] == [each["title"] for each in BOARD["panels"] if each["type"] == "row"]
    variables = {each["name"] for each in BOARD["templating"]["list"]}
    assert variables == {"datasource", "namespace", "job", "instance"}
    for panel in PANELS:
        assert panel["title"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}


def test_every_metric_is_watched():
    watched = " ".join(expressions())
    assert [metric.name for metric in METRICS if metric.name not in watched] == []


def test_prometheus_can_read_every_expression(promtool: Path, tmp_path: Path):
    rules = [
        {"record": f"panel:{number}", "expr": filled(expression)} for number, expression in enumerate(expressions())
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    ended = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{len(rules)} rules found" in ended.stdout


def filled(expression: str) -> str:
    """With what Grafana fills in."""
    for variable in ("namespace", "job", "instance"):
        expression = expression.replace(f"${variable}", ".*")
    return expression.replace("$__rate_interval", "1m")
