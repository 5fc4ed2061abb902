"""Keeps the forecast honest: how many standard deviations it takes so that demand exceeds it as often as agreed.

Every so often the forecast for those who run is written down for one horizon, and looked at again when that has come:
what those of them who still run hold against what was not to be exceeded. Each look moves `z` a little, up by more than
down, so that in the long run the share of exceeded forecasts is the target, whatever is wrong with the curves
(adaptive conformal inference; Gibbs and Candès, NeurIPS 2021).
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

TARGET = 0.03
"""Share of forecasts that may be exceeded. Then the pool is full and someone yields, which costs less than to keep the
pool so empty that it never happens; see docs/scheduling.md."""
START_Z = 1.88
"""What a share of 0.03 lies above in a normal distribution."""
LOWEST_Z, HIGHEST_Z = 0.5, 20.0
GAIN = 0.15


@dataclass(frozen=True, slots=True)
class _Trial:
    due_step: int
    upper_blocks: float
    blocks_then: Mapping[str, float]
    """What each one holds at that time if it still runs."""


@dataclass(slots=True)
class Calibration:
    z: float = START_Z
    trials: int = 0
    exceeded: int = 0
    _open: _Trial | None = None
    _step: int = field(default=0)

    @property
    def is_idle(self) -> bool:
        return self._open is None

    def begin(self, steps: float, upper_blocks: float, blocks_then: Mapping[str, float]) -> None:
        """Write a forecast down: in so many steps, those of ``blocks_then`` who still run hold at most so much."""
        self._open = _Trial(self._step + round(steps), upper_blocks, blocks_then)

    def step(self, running: Set[str], yielded: Set[str], *, by_choice: bool = False) -> None:
        """One step has passed. Who yielded did not end, so a forecast about it cannot be judged; unless they yielded
        ``by_choice``, it was exceeded."""
        self._step += 1
        trial = self._open
        if trial is None:
            return
        if yielded and not yielded.isdisjoint(trial.blocks_then):
            if by_choice:
                self._open = None
            else:
                self._judge(exceeded=True)
        elif self._step >= trial.due_step:
            held = sum(blocks for request_id, blocks in trial.blocks_then.items() if request_id in running)
            self._judge(exceeded=held > trial.upper_blocks)

    def _judge(self, *, exceeded: bool) -> None:
        self._open = None
        self.trials += 1
        self.exceeded += exceeded
        self.z = min(HIGHEST_Z, max(LOWEST_Z, self.z + GAIN * (exceeded - TARGET)))
