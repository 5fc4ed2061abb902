"""When each of those who wait is going to start, as far as that can be told. For people who look; no plan hangs on it.

A plan reserves for the first who does not fit the time from which on it fits *at the confidence of now*: room for those
who may run longer than expected is kept until then. But who still runs at that time is known by then, and the plan of
that time has only what is uncertain still to fear. So the expected start is earlier. It is found by playing it through:
lengths of those who run are drawn from their curves, and in each draw the plan's own test is asked again as they end.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from proxima_engine.policy.demand import HORIZONS, Holding, demand_of, held_blocks, survival_at
from proxima_engine.policy.forecast import EDGES, Floats

MOST_DRAWS, LEAST_DRAWS = 64, 8
_DRAWN_LENGTHS = 2048
"""Of all requests and draws together: where many run they even out, so that fewer draws will do."""
_TIMES: Floats = np.unique(np.round(np.geomspace(1, 16384, 88)))
"""Steps from now at which the test is asked again, shape (times,): each an eighth later than the one before."""


def expected_start_steps(
    running: Sequence[Holding],
    head: Holding,
    z: float,
    room_blocks: float,
    block_size: float,
    *,
    look_in: int = 1,
    look_every: int = 1,
) -> float:
    """Steps until ``head`` is found to fit beside those who then still run of the ``running``: by then it is in half of
    the draws. Nobody else is taken to start meanwhile.

    Plans look again when somebody has ended, and without that in ``look_in`` steps and every ``look_every`` ones after.
    """
    if not running:
        return 0.0
    lives = _Lives(running, block_size)
    (newcomer,) = demand_of([head], block_size)
    waits = np.ones(len(lives.ends), dtype=bool)
    before, then = 0.0, np.ones_like(lives.ends)
    for time in _TIMES:
        alive = (lives.ends > time).astype(np.float64)
        mean, variance, most = lives.ahead(time, alive) + newcomer.parts[:, None]
        fits = (np.minimum(mean + z * np.sqrt(variance), most) <= room_blocks).all(axis=1)
        fits &= lives.blocks(time, alive) + head.blocks <= room_blocks
        # Who is alone starts in any case. Who fits starts at once: later it might not, for the others grow.
        looks = (alive != then).any(axis=1) | (_looks(time, look_in, look_every) > _looks(before, look_in, look_every))
        waits &= ~(fits & looks) & alive.any(axis=1)
        if 2 * np.count_nonzero(waits) <= len(waits):
            return float(before + time) / 2
        before, then = time, alive
    return float(_TIMES[-1])


def _looks(time: float, first: int, every: int) -> int:
    """How often plans have looked without a cause until then."""
    return max(0, int((time - first) // every) + 1)


class _Lives:
    """Those who run, and when each ends in each draw."""

    def __init__(self, running: Sequence[Holding], block_size: float) -> None:
        rows = [(each.blocks, each.tokens, each.output_tokens, each.cap_tokens) for each in running]
        values = np.array(rows, dtype=np.float64)
        self._own, self._tokens, self._generated, self._cap = values.T[:, :, None]
        self._survival = np.stack([each.curve.survival for each in running])
        self._block_size = block_size
        draws = min(MOST_DRAWS, max(LEAST_DRAWS, _DRAWN_LENGTHS // len(running)))
        self.ends = self._draw_ends(draws)
        """Steps from now, shape (draws, running)."""

    def _draw_ends(self, draws: int) -> Floats:
        # Each request meets every quantile of its length once, in an order of its own; always the same, so that the
        # same state gives the same estimate.
        quantiles = np.tile((np.arange(draws) + 0.5) / draws, (len(self._survival), 1))
        drawn = np.random.default_rng(0).permuted(quantiles, axis=1) * survival_at(self._survival, self._generated)
        ends = np.empty((draws, len(drawn)))
        for index, (survival, row) in enumerate(zip(self._survival, drawn, strict=True)):
            ends[:, index] = np.interp(-row, -survival, EDGES)
        left: Floats = np.maximum(np.minimum(ends, self._cap.T) - self._generated.T, 0.0)
        return left

    def ahead(self, time: float, alive: Floats) -> Floats:
        """Mean, variance and most of those alive at ``time``, at each horizon from then; shape (3, draws, horizons)."""
        steps = time + HORIZONS
        reached = np.maximum(survival_at(self._survival, self._generated + time), 1e-200)
        lives_on = np.minimum(survival_at(self._survival, self._generated + steps) / reached, 1.0)
        may_run = self._cap - self._generated > steps
        most = may_run * held_blocks(self._own, self._tokens, steps, self._block_size)
        mean = lives_on * most
        each = np.concatenate((mean, mean * (most - mean), most), axis=1)
        parts: Floats = np.matmul(alive, each).reshape(len(alive), 3, len(HORIZONS)).swapaxes(0, 1)
        return parts

    def blocks(self, time: float, alive: Floats) -> Floats:
        """Held at ``time`` in each draw."""
        held: Floats = np.matmul(alive, held_blocks(self._own, self._tokens, np.array([time]), self._block_size))[:, 0]
        return held


def starts_in_turn_s(first_s: float | None, work: Sequence[float], work_per_s: float) -> Sequence[float | None]:
    """Seconds until each of those who wait starts, first to last; None while that is not known.

    The first after ``first_s``, each other one when as much more has been done as those before it need: ``work`` is
    what each needs, in the unit of ``work_per_s``.
    """
    if first_s is None or work_per_s <= 0:
        return [first_s, *[None] * (len(work) - 1)][: len(work)]
    return [first_s + ahead / work_per_s for ahead in accumulate(work[:-1], initial=0.0)][: len(work)]
