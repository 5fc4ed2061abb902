"""What is learned about a request while it is answered, and is told in its answer's headers."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastapi import Request

from proxima_server.observability.record import current

IGNORED_PARAMS = "x-proxima-ignored-params"
QUEUE_MS = "x-proxima-queue-ms"

_MAX_HEADER_CHARS = 1000


@dataclass(slots=True)
class AnswerNotes:
    ignored: list[str] = field(default_factory=list)
    """Parameters of the request that have no effect here, as dotted paths."""
    door_wait_s: float = 0.0
    """How long the request was held before the engine got it."""
    service_tier: str | None = None
    """The tier the request was served in, if it asked for one."""

    def headers(self) -> dict[str, str]:
        """Those that are known now. A stream's headers go out before it has started to be computed, perhaps."""
        headers = {}
        if self.ignored:
            headers[IGNORED_PARAMS] = _listed(self.ignored)
        engine_wait_s = current().engine_queued_s
        if engine_wait_s is not None:
            headers[QUEUE_MS] = f"{(self.door_wait_s + engine_wait_s) * 1000:.0f}"
        return headers


def notes_of(request: Request) -> AnswerNotes:
    """The notes of `request`."""
    if not hasattr(request.state, "notes"):
        request.state.notes = AnswerNotes()
    notes: AnswerNotes = request.state.notes
    return notes


def _listed(names: list[str]) -> str:
    """`names` as one header: clients choose them, so only what a header may hold, and not endlessly many."""
    sendable = ("".join(char if "!" <= char <= "~" and char != "," else "?" for char in name) for name in names)
    text = ", ".join(name or "?" for name in sendable)
    return text if len(text) <= _MAX_HEADER_CHARS else text[: _MAX_HEADER_CHARS - 3] + "..."
