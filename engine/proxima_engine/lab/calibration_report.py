"""What a calibration found, for people and as a profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from proxima_config.errors import ProximaError
from proxima_engine.lab.calibrate import Calibration
from proxima_engine.lab.check import Prediction
from proxima_engine.lab.profiles import Limits


def as_json(
    found: Calibration, name: str, limits: Limits, predictions: Mapping[str, Mapping[str, Prediction]]
) -> dict[str, Any]:
    return {
        "profile": {"name": name, "cost": asdict(found.cost), "limits": asdict(limits)},
        "steps": found.steps,
        "held_out_steps": {"median_error": found.median_error, "total_error": found.total_error},
        "checks": {
            run: {figure: {**asdict(each), "error": each.error} for figure, each in figures.items()}
            for run, figures in predictions.items()
        },
    }


def write_profile(profile: Mapping[str, Any], path: Path) -> None:
    try:
        path.write_text(yaml.safe_dump(dict(profile), sort_keys=False), encoding="utf-8")
    except OSError as error:
        raise ProximaError(f"{path}: cannot be written ({error.strerror})") from error


def show(values: dict[str, Any], console: Console) -> None:
    """``values`` is what :func:`as_json` made."""
    errors = values["held_out_steps"]
    console.print(
        f"{values['profile']['name']}: fitted to {values['steps']} steps; on those held out the median error is "
        f"{errors['median_error']:.1%}, that of their total time {errors['total_error']:+.1%}",
        highlight=False,
    )
    for name, figures in values["checks"].items():
        table = Table("figure", title=name, title_justify="left")
        for column in ("measured", "predicted", "error"):
            table.add_column(column, justify="right")
        for figure, each in figures.items():
            table.add_row(figure, f"{each['measured']:.4g}", f"{each['predicted']:.4g}", f"{each['error']:+.1%}")
        console.print(table, highlight=False)
