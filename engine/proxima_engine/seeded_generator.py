"""A CPU random generator that can take back its last draw.

vLLM samples a token for every request of a batch, also for one whose prompt is only partly computed, throws that token
away and winds the generator of a seeded request back with ``gen.set_offset(gen.get_offset() - 4)``: four is what one
draw advances a CUDA generator. CPU generators have no offset and raise, which ends the engine for everybody.
"""

from __future__ import annotations

import torch

# What vLLM subtracts to take back one draw (v1/worker/gpu_model_runner.py, _bookkeeping_sync).
DRAW = 4


class RewindableGenerator(torch.Generator):  # type: ignore[misc]  # mypy skips torch's sources
    """Speaks vLLM's offset language by restoring a saved state.

    The Mersenne Twister behind CPU generators cannot step backwards, and Python does not see the draws, so the owner
    calls :meth:`mark` before each round of draws. The offset counts marks, four apart.
    """

    # No __init__ with arguments of its own: torch.Generator takes the device in __new__.
    _offset = 0
    _marked: torch.Tensor | None = None

    @classmethod
    def take_over(cls, generator: torch.Generator) -> RewindableGenerator:
        """A generator that continues exactly where ``generator`` stands."""
        own = cls(device="cpu")
        own.set_state(generator.get_state())
        return own

    def mark(self) -> None:
        """Save the state (5 KB) that the next set_offset returns to."""
        self._marked = self.get_state()
        self._offset += DRAW

    def get_offset(self) -> int:
        return self._offset

    def set_offset(self, offset: int) -> None:
        """Take back everything drawn since the last mark. Raises ValueError for any other offset."""
        if self._marked is None or offset != self._offset - DRAW:
            raise ValueError(f"can only return to offset {self._offset - DRAW}, the last mark, not to {offset}")
        self.set_state(self._marked)
        self._offset = offset
        self._marked = None
