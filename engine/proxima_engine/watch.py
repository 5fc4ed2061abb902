"""What the gateway learns about one request while the engine computes it, without a look at what vLLM sends to clients.

The gateway sets `current` before it calls vLLM's serving layer; every prompt that the serving layer then hands to the
engine in that context (several for a list of prompts) is reported to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

GAVE_UP = "The engine gave up the request before it was complete"
"""What is said of a request that the engine ended although nobody had asked it to."""


@dataclass(frozen=True, slots=True)
class EngineTimes:
    """Durations on the clock of the engine process, which may run on another machine."""

    queued_s: float
    """From arrival in the scheduler's queue to the first step that computed it."""
    prefill_s: float
    """From there to the first token."""
    decode_s: float
    """From the first token to the newest."""


class PromptWatch(Protocol):
    """Told about one prompt."""

    def started(self, prompt_tokens: int, cached_tokens: int, times: EngineTimes | None) -> None:
        """Its first output is here. No times where vLLM's statistics are switched off."""

    def output(self, tokens: int) -> None:
        """`tokens` new ones have arrived, of all choices together; called for each output, the first included."""

    def ended(self, times: EngineTimes | None) -> None:
        """All of its outputs have arrived."""

    def failed(self, error: Exception) -> None:
        """No more outputs come: `error` is what the engine, or its client, said. vLLM's handlers turn it into events of
        their protocols, of which some no longer tell what failed."""


class RequestWatch(Protocol):
    def watch_prompt(
        self, engine_id: str, adapter: str | None, hints: Mapping[str, object], choices: int, *, streamed: bool
    ) -> PromptWatch:
        """A prompt goes to the engine under that id, for the LoRA adapter of that name, with the hints to the
        scheduler.

        Unless `streamed`, its output comes at once, at the end.
        """


current: ContextVar[RequestWatch | None] = ContextVar("proxima_request_watch", default=None)
"""The request that this task works for."""
