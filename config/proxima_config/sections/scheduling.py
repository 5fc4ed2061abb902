"""Settings of the scheduler."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from proxima_config.sections.section import CliFlag, Section
from proxima_config.slo import DEFAULT_SLO


class SchedulerSettings(Section):
    """Which requests start, and when."""

    kind: Annotated[Literal["proxima", "native", "gang"], CliFlag("--scheduler")] = Field(
        default="proxima",
        description="Who decides which requests start: Proxima's policy, vLLM's own scheduler untouched (native, the "
        "rollback), or all-or-nothing allocation (gang, a teaching baseline for comparisons, nothing to serve with). "
        "On the command line --use-proxima and --no-use-proxima choose between the first two.",
    )
    ttft_s: float = Field(
        default=DEFAULT_SLO.ttft_s,
        gt=0,
        le=86400,
        description="Target in seconds from the arrival of a request to its first token. Requests that can still meet "
        "it start before those that have missed it.",
    )
    stall_s: float = Field(
        default=DEFAULT_SLO.stall_s,
        gt=0,
        le=86400,
        description="Target in seconds for the longest gap between two tokens of an answer. While answers stream, a "
        "step computes no more prompt tokens than it can in that time, by measured step times; unbounded where the "
        "answers alone take as long.",
    )
    max_stall_s: float = Field(
        default=2.0,
        gt=0,
        le=86400,
        description="With swap.enabled: longest gap in seconds between two tokens of an answer that has given up its "
        "blocks, as far as capacity allows. In time for it, or for stall_s where that is less and can still be met, it "
        "takes the blocks of one that is late already, or that came last; with many who stand still, turns come later, "
        "so that copies take no more than 8 % of the time. There is no such bound where copies are dear.",
    )
    max_wait_s: float = Field(
        default=75.0,
        ge=0,
        le=86400,
        description="Age bound in seconds: a request that has waited for this long goes before all that have not, and "
        "is not passed at all after twice as long, when those who came later give their blocks back. Where a queue in "
        "order of arrival would be longer than that, the bound is 1.25 times the wait in it. Lower bounds the worst "
        "wait, higher keeps more requests within their target when there is too much load. 0 keeps strict order of "
        "arrival, and forecasts.",
    )
    max_policy_failures: int = Field(
        default=3,
        ge=1,
        le=1000,
        description="Consecutive errors of the policy after which the engine keeps to arrival order until restart.",
    )
