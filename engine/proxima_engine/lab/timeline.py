"""Every request of a simulation in columns, as `proxima bench` writes them: what a report draws."""

from __future__ import annotations

from typing import Any

from proxima_config.slo import SLO
from proxima_engine.lab.simulate import Run

_DIGITS = 4


def timeline(run: Run, slo: SLO) -> dict[str, list[Any]]:
    """Times in seconds of virtual time; refused requests are left out."""
    records = sorted((each for each in run.records if not each.refused), key=lambda each: each.sent_s)
    return {
        "sent_s": [_rounded(each.sent_s) for each in records],
        "ttft_s": [_rounded(each.ttft_s) for each in records],
        "e2e_s": [_rounded(each.e2e_s) for each in records],
        "stall_s": [_rounded(each.stall_s) for each in records],
        "stall_at_s": [_rounded(each.stall_at_s) for each in records],
        "output_tokens": [each.tokens for each in records],
        "outcome": ["completed"] * len(records),
        "attained": [
            slo.attained(delivered=each.ended_s is not None, ttft_s=each.ttft_s, stall_s=each.stall_s)
            for each in records
        ],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)
