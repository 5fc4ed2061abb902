"""What was seen of one request, and what follows from it.

Times are readings of the recorder's clock in seconds; every figure is computed from them afterwards and from nothing
else, so that a test with a clock of its own can check each one exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from proxima_config.slo import SLO, gaps_s, longest_stall_s

Clock = Callable[[], float]


class Outcome(StrEnum):
    COMPLETED = "completed"
    REFUSED = "refused"
    """Status 429 or 503: the server said no."""
    FAILED = "failed"
    """Any other error, or an answer that is none."""
    CUT_OFF = "cut_off"
    """The connection ended before the answer did."""
    TIMED_OUT = "timed_out"
    """The request's own time limit passed."""
    WITHDRAWN = "withdrawn"
    """The client left on purpose, as the load told it to."""
    NOT_SENT = "not_sent"
    """A later turn of a conversation whose earlier turn got no answer."""


@dataclass(slots=True)
class Exchange:
    """One request and its answer."""

    conversation: int
    turn: int
    wanted_tokens: int
    """Length of answer that the load asked for; what is binding depends on the load's kind of lengths."""
    sent_s: float = 0.0
    due_s: float | None = None
    """When the load wanted it sent; None in a closed loop."""
    ended_s: float = 0.0
    token_times_s: list[float] = field(default_factory=list)
    """Arrival of each piece of the answer; a server may put several tokens into one piece."""
    streamed: bool = True
    outcome: Outcome = Outcome.NOT_SENT
    code: str = ""
    """Empty for a completed request, else a stable word: http_429, connect, timeout, cut_off, error_event..."""
    detail: str = ""
    prompt_tokens: int | None = None
    usage_tokens: int | None = None
    """Output tokens by the server's own count; None where it sent none."""
    finish_reason: str | None = None
    texts: list[str] = field(default_factory=list)

    @property
    def output_tokens(self) -> int:
        return len(self.token_times_s) if self.usage_tokens is None else self.usage_tokens

    @property
    def ttft_s(self) -> float | None:
        """From sending to the first piece; the whole answer where it came in one."""
        return self.token_times_s[0] - self.sent_s if self.token_times_s else None

    @property
    def e2e_s(self) -> float:
        return self.ended_s - self.sent_s

    @property
    def itl_s(self) -> list[float]:
        """Gaps between consecutive pieces."""
        return gaps_s(self.token_times_s)

    @property
    def stall_s(self) -> float:
        return longest_stall_s(self.token_times_s)

    @property
    def stall_at_s(self) -> float | None:
        """When the longest gap began; None where there is none."""
        gaps_s = self.itl_s
        return self.token_times_s[gaps_s.index(max(gaps_s))] if gaps_s else None

    @property
    def tpot_s(self) -> float | None:
        """Mean time of each token after the first; None for a single token or an answer in one piece."""
        if self.ttft_s is None or not self.streamed or self.output_tokens < 2:
            return None
        return (self.e2e_s - self.ttft_s) / (self.output_tokens - 1)

    @property
    def error(self) -> bool:
        return self.outcome not in (Outcome.COMPLETED, Outcome.WITHDRAWN)

    def attained(self, slo: SLO) -> bool:
        """A withdrawn request is judged by what came until its client left, the unfinished last gap included."""
        stall_s = self.stall_s
        if self.outcome is Outcome.WITHDRAWN and self.token_times_s:
            stall_s = max(stall_s, self.ended_s - self.token_times_s[-1])
        return slo.attained(delivered=not self.error, ttft_s=self.ttft_s, stall_s=stall_s)

    def as_row(self, start_s: float, slo: SLO) -> dict[str, Any]:
        """For the log of requests; times in seconds since the measurement began."""
        unsent = self.outcome is Outcome.NOT_SENT
        return {
            "conversation": self.conversation,
            "turn": self.turn,
            "outcome": str(self.outcome),
            "code": self.code,
            "detail": self.detail,
            "attained": self.attained(slo),
            "due_s": None if self.due_s is None else self.due_s - start_s,
            "sent_s": None if unsent else self.sent_s - start_s,
            "ended_s": None if unsent else self.ended_s - start_s,
            "ttft_s": self.ttft_s,
            "tpot_s": self.tpot_s,
            "stall_s": self.stall_s,
            "e2e_s": None if unsent else self.e2e_s,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "wanted_tokens": self.wanted_tokens,
            "finish_reason": self.finish_reason,
            "token_times_s": [time_s - start_s for time_s in self.token_times_s],
        }
