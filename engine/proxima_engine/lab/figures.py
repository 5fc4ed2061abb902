"""From a simulation to the figures of one arm."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from proxima_config.percentiles import percentile
from proxima_config.slo import SLO, attainment, goodput_rps
from proxima_engine.lab.simulate import Run

Figures = dict[str, Any]


def figures(run: Run, slo: SLO, *, with_wall_time: bool = False) -> Figures:
    """All figures of one arm; latencies are those of requests that were answered.

    Everything follows from virtual time and is the same for the same seed, except ``schedule_us_mean``, the real time
    that scheduling and output handling took: None unless it was asked for.
    """
    records = run.records
    done = [record for record in records if record.ended_s is not None]
    duration_s = run.end_s - min((record.sent_s for record in records), default=0.0)
    arriving_s = run.last_arrival_s - min((record.sent_s for record in records), default=0.0)
    attained = sum(slo.attained(delivered=r.ended_s is not None, ttft_s=r.ttft_s, stall_s=r.stall_s) for r in records)
    tokens = sum(record.tokens for record in records)
    ttft_s = sorted(record.ttft_s for record in done if record.ttft_s is not None)
    e2e_s = sorted(record.e2e_s for record in done if record.e2e_s is not None)
    stall_s = sorted(record.stall_s for record in done)
    return {
        "requests": len(records),
        "refused": sum(record.refused for record in records),
        "attainment": attainment(attained, len(records)),
        "goodput_rps": goodput_rps(attained, duration_s),
        "qps": len(done) / duration_s if duration_s else None,
        "output_tokens_per_s": tokens / duration_s if duration_s else None,
        "output_tokens_per_s_arriving": run.tokens_while_arriving / arriving_s if arriving_s else None,
        "ttft_p50_s": _percentile(ttft_s, 50),
        "ttft_p99_s": _percentile(ttft_s, 99),
        "e2e_mean_s": fmean(e2e_s) if e2e_s else None,
        "e2e_p95_s": _percentile(e2e_s, 95),
        "e2e_p99_s": _percentile(e2e_s, 99),
        "stall_p95_s": _percentile(stall_s, 95),
        "stall_max_s": stall_s[-1] if stall_s else None,
        "preemptions": run.preemptions,
        "recomputed_tokens": run.recomputed_tokens,
        "pool_use_mean": run.pool_use_sum_s / run.busy_s if run.busy_s else None,
        "running_mean": run.running_sum_s / run.busy_s if run.busy_s else None,
        "forecasts_checked": run.forecasts[0] if run.forecasts else None,
        "forecasts_exceeded": run.forecasts[1] if run.forecasts else None,
        "duration_s": duration_s,
        "steps": run.steps,
        "schedule_us_mean": run.wall_s / run.steps * 1e6 if with_wall_time and run.steps else None,
    }


def _percentile(ordered: list[float], share: float) -> float | None:
    return percentile(ordered, share) if ordered else None
