"""How many tokens a step may compute so that nobody who streams stands still because of others' prompts.

All who run wait for the end of a step, and a step that computes several long prompts at once is a long one. What a step
costs, and each of its tokens, is learned by least squares from the steps that were measured, old ones forgotten; and by
how much the longer ones exceed that line, by counting how often they do.
"""

from __future__ import annotations

import math

KEEP = 1 - 1 / 200
"""Steps after which what was learned counts 1/e: 200."""
LEAST_STEPS = 20
"""Measured steps (old ones count less) below which nothing is known."""
SHARE = 0.95
"""Part of the target that a step may take; the rest is for planning and for what lies between two steps."""
EXCEEDED = 0.002
"""Share of the longer steps that may take longer than `StepTime.margin` allows."""
FIRST_MARGIN, GAIN = 1.25, 0.05
"""The margin before anything is known, and how far one step that exceeds it moves it."""
LEAST_TOKENS = 64
"""Prompt tokens of a step below which it is not bounded."""


class StepTime:
    """Time of a step: a base, and so much for each token."""

    def __init__(self) -> None:
        self.margin = FIRST_MARGIN
        """How many times as long as by the line a step may take."""
        self._steps = self._tokens = self._seconds = self._squares = self._products = 0.0
        """Decayed sums over steps."""

    def learn(self, tokens: int, took_s: float) -> None:
        if tokens * self._steps > self._tokens and (fitted := self.fit()) is not None:
            # Longer than most. A step up for each that exceeds it and a small one down for each that does not: it
            # settles where the share of those that do is as agreed.
            exceeded = took_s > self.margin * (fitted[0] + fitted[1] * tokens)
            self.margin = max(1.0, self.margin + GAIN * (exceeded - EXCEEDED))
        self._steps = self._steps * KEEP + 1
        self._tokens = self._tokens * KEEP + tokens
        self._seconds = self._seconds * KEEP + took_s
        self._squares = self._squares * KEEP + tokens * tokens
        self._products = self._products * KEEP + tokens * took_s

    def fit(self) -> tuple[float, float] | None:
        """Seconds of the base and of a token; None while that is not known, as with steps that are all alike."""
        spread = self._steps * self._squares - self._tokens**2
        token_s = (self._steps * self._products - self._tokens * self._seconds) / spread if spread > 0 else 0.0
        if self._steps < LEAST_STEPS or token_s <= 0:
            return None
        return max(0.0, (self._seconds - token_s * self._tokens) / self._steps), token_s


def token_budget(step_time: StepTime, stall_s: float, running: int) -> int | None:
    """Most tokens of the coming step, one for each of the ``running``, the others of prompts; None for no bound.

    There is none where those who run would have to wait for longer than ``stall_s`` anyway, or where so little would be
    left for prompts that the steps themselves cost more than the prompts in them.
    """
    fitted = step_time.fit() if running and stall_s < math.inf else None
    if fitted is None:
        return None
    base_s, token_s = fitted
    tokens = (SHARE * stall_s / step_time.margin - base_s) / token_s
    return int(tokens) if tokens - running >= max(LEAST_TOKENS, base_s / token_s) else None
