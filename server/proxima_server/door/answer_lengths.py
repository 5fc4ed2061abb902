"""How long an answer becomes at the least, likely."""

from __future__ import annotations

from collections import defaultdict, deque

from proxima_server.door.size import Size

MIN_ANSWERS = 16
"""Fewer say nothing."""
_KEPT = 128
_QUARTILE = 0.25


class AnswerLengths:
    """Learns from answers to requests that declared as much, to the power of two.

    A quarter of them were shorter than what is said: whoever is refused for it would most likely have been late.
    """

    def __init__(self) -> None:
        self._seen: defaultdict[int, deque[int]] = defaultdict(lambda: deque(maxlen=_KEPT))

    def at_least(self, size: Size) -> int:
        """Tokens of one answer."""
        seen = self._seen[_band(size)]
        usual = sorted(seen)[int(len(seen) * _QUARTILE)] if len(seen) >= MIN_ANSWERS else 1
        least = max(usual, size.least_tokens)
        return least if size.declared_tokens is None else min(least, size.declared_tokens // size.sequences)

    def learn(self, size: Size, answer_tokens: int) -> None:
        """An answer to a request of that size was complete with so many tokens."""
        self._seen[_band(size)].append(answer_tokens)


def _band(size: Size) -> int:
    return 0 if size.declared_tokens is None else (size.declared_tokens // size.sequences).bit_length()
