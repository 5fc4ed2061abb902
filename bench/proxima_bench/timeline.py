"""Every request of a measurement in columns: what a report draws, small enough to go into each result."""

from __future__ import annotations

from typing import Any

from proxima_bench.exchange import Outcome
from proxima_bench.runner import Run
from proxima_config.slo import SLO

_DIGITS = 4

Timeline = dict[str, list[Any]]


def timeline(run: Run, slo: SLO) -> Timeline:
    """Times in seconds; those of day are since the measurement began. Requests that were never sent are left out."""
    sent = [each for each in run.exchanges if each.outcome is not Outcome.NOT_SENT]
    sent.sort(key=lambda each: each.sent_s)
    return {
        "sent_s": [_rounded(each.sent_s - run.start_s) for each in sent],
        "ttft_s": [_rounded(each.ttft_s) for each in sent],
        "e2e_s": [_rounded(each.e2e_s) for each in sent],
        "stall_s": [_rounded(each.stall_s if each.streamed and each.token_times_s else None) for each in sent],
        "stall_at_s": [_rounded(None if each.stall_at_s is None else each.stall_at_s - run.start_s) for each in sent],
        "output_tokens": [each.output_tokens for each in sent],
        "outcome": [str(each.outcome) for each in sent],
        "attained": [each.attained(slo) for each in sent],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)
