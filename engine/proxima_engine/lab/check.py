"""Does the lab predict what a real engine did? The same requests, simulated and measured."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from proxima_config.errors import UsageError
from proxima_engine.lab.arms import ArmSpec
from proxima_engine.lab.experiment import simulate_arm
from proxima_engine.lab.requests import LabRequest, Workload
from proxima_engine.lab.setting import Setting
from proxima_engine.lab.simulate import Run


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of `proxima bench serve`."""

    name: str
    workload: Workload
    figures: dict[str, float]


@dataclass(frozen=True, slots=True)
class Prediction:
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Relative, positive where the lab predicts too much; of a measured 0 the difference itself."""
        return (self.predicted - self.measured) / (self.measured or 1.0)


def read(text: str) -> Measured:
    """``text`` is REPORT:REQUESTS: what `bench serve` wrote with `--json` and `--log-requests`. Raises UsageError."""
    report_path, separator, requests_path = text.partition(":")
    if not separator:
        raise UsageError(f"--check must look like report.json:requests.jsonl, not {text}")
    try:
        report = json.loads(Path(report_path).read_text(encoding="utf-8"))
        lines = Path(requests_path).read_text(encoding="utf-8").splitlines()
        return _measured(Path(report_path).stem, report, [json.loads(line) for line in lines])
    except OSError as error:
        raise UsageError(f"--check: {error.filename} cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"--check: {text} is not what `bench serve --json --log-requests` wrote") from error


def predict(measured: Measured, arm: ArmSpec, setting: Setting) -> dict[str, Prediction]:
    """Each figure as measured and as the lab predicts it; ``setting`` holds the workload of ``measured``."""
    predicted = _figures(simulate_arm(arm, setting))
    return {name: Prediction(value, predicted[name]) for name, value in measured.figures.items()}


def _measured(name: str, report: dict[str, Any], rows: list[dict[str, Any]]) -> Measured:
    load = report["load"]
    if any(row["outcome"] != "completed" for row in rows):
        raise UsageError(f"--check: {name}: only a run in which every request completed can be compared")
    requests = tuple(
        LabRequest(
            request_id=str(number),
            arrival_s=row["due_s"] or 0.0,
            input_tokens=row["prompt_tokens"],
            output_tokens=row["output_tokens"],
            cap_tokens=load["cap_tokens"],
        )
        for number, row in enumerate(rows)
    )
    figures = {
        "output_tokens_per_s": report["output_tokens_per_s"],
        "ttft_mean_s": report["ttft_s"]["mean"],
        "itl_mean_s": report["itl_s"]["mean"],
        "e2e_mean_s": report["e2e_s"]["mean"],
        "preemptions": report["server"]["preemptions"],
    }
    return Measured(name, Workload(name, requests, load["shape"].get("concurrency")), figures)


def _figures(run: Run) -> dict[str, float]:
    records = run.records
    gaps = sum(record.tokens - 1 for record in records)
    streaming_s = sum(record.last_token_s - (record.first_token_s or 0.0) for record in records)
    return {
        "output_tokens_per_s": sum(record.tokens for record in records) / (run.end_s - records[0].sent_s),
        "ttft_mean_s": fmean(record.ttft_s or 0.0 for record in records),
        "itl_mean_s": streaming_s / gaps if gaps else 0.0,
        "e2e_mean_s": fmean(record.e2e_s or 0.0 for record in records),
        "preemptions": run.preemptions,
    }
