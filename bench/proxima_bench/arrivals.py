"""When conversations begin: fixed numbers in flight, or points in time drawn before the run.

Open loops do not wait for answers: a server that falls behind gets no mercy, as with real users.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from proxima_config.errors import UsageError

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Shape(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Closed(_Shape):
    """A fixed number in flight: the next begins when one ends."""

    kind: Literal["closed"] = "closed"
    concurrency: int = Field(ge=1)

    def describe(self) -> str:
        return f"closed loop, {self.concurrency} at once"


class Poisson(_Shape):
    """Independent arrivals."""

    kind: Literal["poisson"] = "poisson"
    rate_rps: Positive

    def describe(self) -> str:
        return f"Poisson, {self.rate_rps:g}/s"

    def times_s(self, count: int, rng: random.Random) -> list[float]:
        return _sum(rng.expovariate(self.rate_rps) for _ in range(count))


class Gamma(_Shape):
    """Gaps drawn from a Gamma distribution: the smaller ``burstiness`` is, the more arrivals come in clumps."""

    kind: Literal["gamma"] = "gamma"
    rate_rps: Positive
    burstiness: Positive = 0.25
    """Shape parameter of the distribution; 1 is Poisson, above 1 is more regular. The squared coefficient of variation
    of the gaps is its inverse."""

    def describe(self) -> str:
        return f"Gamma bursts, {self.rate_rps:g}/s, burstiness {self.burstiness:g}"

    def times_s(self, count: int, rng: random.Random) -> list[float]:
        scale = 1 / (self.rate_rps * self.burstiness)
        return _sum(rng.gammavariate(self.burstiness, scale) for _ in range(count))


class Constant(_Shape):
    """Equal gaps."""

    kind: Literal["constant"] = "constant"
    rate_rps: Positive

    def describe(self) -> str:
        return f"constant, {self.rate_rps:g}/s"

    def times_s(self, count: int, _rng: random.Random) -> list[float]:
        return [index / self.rate_rps for index in range(count)]


class Ramp(_Shape):
    """Poisson arrivals whose rate goes in a straight line from one to the other, then stays."""

    kind: Literal["ramp"] = "ramp"
    from_rps: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    to_rps: Positive
    over_s: Positive

    def describe(self) -> str:
        return f"ramp from {self.from_rps:g} to {self.to_rps:g}/s over {self.over_s:g} s"

    def times_s(self, count: int, rng: random.Random) -> list[float]:
        # A Poisson process of rate 1 in the number of expected arrivals, carried over to time.
        return [self._time_s(expected) for expected in accumulate(rng.expovariate(1.0) for _ in range(count))]

    def _time_s(self, expected: float) -> float:
        """When ``expected`` arrivals are expected: the inverse of the integrated rate."""
        slope = (self.to_rps - self.from_rps) / self.over_s
        in_ramp = (self.from_rps + self.to_rps) / 2 * self.over_s
        if expected >= in_ramp:
            return self.over_s + (expected - in_ramp) / self.to_rps
        # Root of slope/2 t² + from t = expected, in the form that does not cancel for a slope near 0.
        twice_mean_rps = self.from_rps + math.sqrt(self.from_rps**2 + 2 * slope * expected)
        return 2 * expected / twice_mean_rps if twice_mean_rps else 0.0


class Replay(_Shape):
    """The arrival times of the prompts' own trace, faster or slower."""

    kind: Literal["trace"] = "trace"
    rate_scale: Positive = 1.0
    """How many times faster than recorded."""
    rate_rps: Positive | None = None
    """Instead of a scale: the mean rate to reach."""

    def describe(self) -> str:
        return f"trace at {self.rate_rps:g}/s" if self.rate_rps else f"trace at {self.rate_scale:g}x"

    def replayed_s(self, recorded_s: Sequence[float | None]) -> list[float]:
        known = [time_s for time_s in recorded_s if time_s is not None]
        if len(known) < len(recorded_s):
            raise UsageError("a trace replay needs prompts with arrival times (arrival_s)")
        first = min(known, default=0.0)
        span_s = max(known, default=0.0) - first
        scale = self.rate_scale
        if self.rate_rps is not None and span_s:
            # n arrivals have n - 1 gaps; the mean rate is over those.
            scale = self.rate_rps * span_s / (len(known) - 1)
        return [(time_s - first) / scale for time_s in known]


OpenLoop = Poisson | Gamma | Constant | Ramp | Replay
Shape = Annotated[Closed | OpenLoop, Field(discriminator="kind")]


def arrivals_s(shape: OpenLoop, recorded_s: Sequence[float | None], rng: random.Random) -> list[float]:
    """One time in seconds since the start for each conversation, in the order of the conversations.

    ``recorded_s`` are the arrival times that the prompts came with, of which only a replay makes use.
    """
    if isinstance(shape, Replay):
        return shape.replayed_s(recorded_s)
    return shape.times_s(len(recorded_s), rng)


def _sum(gaps_s: Iterable[float]) -> list[float]:
    return list(accumulate(gaps_s))
