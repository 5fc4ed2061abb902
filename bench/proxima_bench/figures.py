"""From recorded requests to the figures of a report."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from proxima_bench.exchange import Exchange, Outcome
from proxima_bench.runner import Run
from proxima_config.percentiles import percentile
from proxima_config.slo import SLO, attainment, goodput_rps

PERCENTILES = (50, 90, 95, 99)
STATISTICS = ("mean", *(f"p{each}" for each in PERCENTILES), "max")
Distribution = dict[str, float | None]


def distribution(values: Iterable[float | None]) -> Distribution:
    """mean, p50, p90, p95, p99 and max; all None when there are no values. Values that are None are left out."""
    ordered = sorted(value for value in values if value is not None)
    if not ordered:
        return dict.fromkeys(STATISTICS)
    shares = {f"p{each}": percentile(ordered, each) for each in PERCENTILES}
    return {"mean": math.fsum(ordered) / len(ordered), **shares, "max": ordered[-1]}


def figures(run: Run, slo: SLO) -> dict[str, Any]:
    """Everything that follows from the requests alone. Latencies are those of completed requests."""
    exchanges, duration_s = run.exchanges, run.duration_s
    done = [each for each in exchanges if each.outcome is Outcome.COMPLETED]
    attained = sum(each.attained(slo) for each in exchanges)
    output_tokens = sum(each.output_tokens for each in done)
    return {
        "qps": len(done) / duration_s if duration_s else None,
        "output_tokens_per_s": output_tokens / duration_s if duration_s else None,
        "ttft_s": distribution(each.ttft_s for each in done),
        "itl_s": distribution(gap for each in done for gap in each.itl_s),
        "tpot_s": distribution(each.tpot_s for each in done),
        "e2e_s": distribution(each.e2e_s for each in done),
        "stall_s": distribution(each.stall_s for each in done if each.streamed),
        "attainment": attainment(attained, len(exchanges)),
        "goodput_rps": goodput_rps(attained, duration_s),
        "errors": dict(sorted(Counter(each.code for each in exchanges if each.error).items())),
        "slo": {"ttft_s": slo.ttft_s, "stall_s": slo.stall_s},
        "requests": {
            "offered": len(exchanges),
            "attained": attained,
            **{str(outcome): sum(each.outcome is outcome for each in exchanges) for outcome in Outcome},
        },
        "tokens": _tokens(done, output_tokens),
        "duration_s": duration_s,
    }


def error_rate(report: dict[str, Any]) -> float:
    """Share of offered requests that ended in an error."""
    errors: dict[str, int] = report["errors"]
    return sum(errors.values()) / max(1, int(report["requests"]["offered"]))


def _tokens(done: Sequence[Exchange], output_tokens: int) -> dict[str, Any]:
    """Totals of completed requests, and who counted them."""
    counted = sum(each.usage_tokens is not None for each in done)
    prompts = [each.prompt_tokens for each in done if each.prompt_tokens is not None]
    source = "usage" if counted == len(done) else "mixed" if counted else "chunks"
    return {"output": output_tokens, "source": source, "prompt": sum(prompts) if prompts else None}
