"""What is known about one request while it is answered.

The middleware makes a record and sets it for the task; whoever learns something about the request notes it there:

    current().key_id = "team-a"

Times are on the monotonic clock of this process.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from proxima_config import hints
from proxima_engine import watch
from proxima_engine.watch import EngineTimes
from proxima_server.metrics.request_metrics import RequestMetrics
from proxima_server.observability.prompts import prompt_excerpt

if TYPE_CHECKING:
    from opentelemetry.trace import Span

MAX_MODEL_CHARS = 120

_CLIENT_CLOSED = 499


class Outcome(StrEnum):
    OK = "ok"
    REFUSED = "refused"
    """The request itself was wrong (4xx)."""
    REJECTED = "rejected"
    """It came at the wrong time: too many of them, or the gateway was not ready (429, 503)."""
    FAILED = "failed"
    """An error of ours, or a stream that ended with an error event."""
    ABORTED = "aborted"
    """The client left before the end, or its own deadline had passed."""


class RequestRecord:
    """One request. Implements :class:`proxima_engine.watch.RequestWatch`."""

    def __init__(self, metrics: RequestMetrics, method: str = "", path: str = "", prompt_chars: int = 0) -> None:
        self.metrics = metrics
        self.prompt_chars = prompt_chars
        """How much of the prompt may be logged."""
        self.method = method
        self.path = path
        self.arrived_s = time.monotonic()
        self.arrived_at_s = time.time()
        """The same moment on the wall clock, seconds since the epoch."""
        self.request_id: str | None = None
        self.trace_id: str | None = None
        self.span: Span | None = None
        self.key_id: str | None = None
        """Name of the API key, never the key itself."""
        self.model: str | None = None
        self.class_name: str = hints.RequestClass.DEFAULT.value
        self.first_token_within_s: float | None = None
        self.done_within_s: float | None = None
        """Its deadlines, in seconds from its arrival; None for none."""
        self.prompt: str | None = None
        """Redacted and cut, and only where the settings ask for it."""
        self.status = _CLIENT_CLOSED
        self.error_code: str | None = None
        self.answered = False
        """The server has the whole response."""
        self.failed = False
        self.given_up = False
        """It was not done by the deadline that it had set itself: whoever may set any is no measure of ours."""
        self.bytes_in = 0
        self.bytes_out = 0
        self.read_s = self.arrived_s
        """When all of it was here, and its wait began."""
        # Of the engine: None or 0 while nothing was computed.
        self.sent_s: float | None = None
        """When the first of its prompts went to the engine."""
        self.engine_ids: list[str] = []
        """One for each of its prompts."""
        self.engine_queued_s: float | None = None
        """How long it waited there for its first step, in seconds."""
        self.scheduled_s: float | None = None
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self.stall_s = 0.0
        """Longest gap between two outputs of one prompt; only where they are streamed."""
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0
        self.failure: Exception | None = None
        """Why the engine did not answer it, as vLLM says so."""

    @property
    def outcome(self) -> Outcome:
        outcome = self._outcome()
        return Outcome.ABORTED if self.given_up and outcome is Outcome.FAILED else outcome

    def _outcome(self) -> Outcome:
        if self.failed:
            return Outcome.FAILED
        if self.status == _CLIENT_CLOSED or not self.answered:
            return Outcome.ABORTED
        if self.status in (429, 503):
            return Outcome.REJECTED
        if self.status >= 500:
            return Outcome.FAILED
        if self.status >= 400:
            return Outcome.REFUSED
        # An error after the status was sent.
        return Outcome.FAILED if self.error_code is not None else Outcome.OK

    @property
    def queue_s(self) -> float | None:
        """Seconds from having read the request to the first step that computed it: at the door, and in the engine."""
        return None if self.scheduled_s is None else self.scheduled_s - self.read_s

    @property
    def ttft_s(self) -> float | None:
        """Seconds from the request's arrival here to its first token."""
        return None if self.first_token_s is None else self.first_token_s - self.arrived_s

    def wall_s(self, at_s: float) -> float:
        """The moment `at_s` on the wall clock, seconds since the epoch."""
        return self.arrived_at_s + at_s - self.arrived_s

    def note_body(self, body: Mapping[str, Any]) -> None:
        """What the request asks for, as its JSON body says; called when that has been read."""
        self.read_s = time.monotonic()
        model = body.get("model")
        if isinstance(model, str):
            self.model = model[:MAX_MODEL_CHARS]
        if self.prompt_chars:
            self.prompt = prompt_excerpt(body, self.prompt_chars)

    def note_admission(self, class_name: str, first_token_within_s: float | None, done_within_s: float | None) -> None:
        """The door has let it queue."""
        self.class_name = class_name
        self.first_token_within_s = first_token_within_s
        self.done_within_s = done_within_s

    def watch_prompt(
        self, engine_id: str, adapter: str | None, told: Mapping[str, object], choices: int, *, streamed: bool
    ) -> PromptRecord:
        if self.sent_s is None:
            self.sent_s = time.monotonic()
        self.engine_ids.append(engine_id)
        if adapter is not None:
            self.model = adapter
        told_class = told.get(hints.CLASS)
        if isinstance(told_class, str):
            self.class_name = told_class
        return PromptRecord(self, spaced=streamed and choices == 1, streamed=streamed)

    def first_token(self, at_s: float, times: EngineTimes | None) -> None:
        """The first token of all prompts has arrived at `at_s`."""
        if self.first_token_s is not None:
            return
        of_class = self.metrics.of_class(self.class_name)
        self.first_token_s = at_s
        of_class.ttft.observe(at_s - self.arrived_s)
        if times is not None and self.sent_s is not None:
            self.engine_queued_s = times.queued_s
            self.scheduled_s = max(self.sent_s, at_s - times.prefill_s)
            of_class.queue.observe(self.scheduled_s - self.read_s)


class PromptRecord:
    """One prompt of a request. Implements :class:`proxima_engine.watch.PromptWatch`."""

    __slots__ = ("_last_s", "_metrics", "_request", "_spaced", "_streamed", "_times")

    def __init__(self, request: RequestRecord, *, spaced: bool, streamed: bool) -> None:
        self._request = request
        self._metrics = request.metrics.of_class(request.class_name)
        self._spaced = spaced
        """Whether gaps between outputs are gaps between tokens of one text."""
        self._streamed = streamed
        self._times: EngineTimes | None = None
        self._last_s = 0.0

    def started(self, prompt_tokens: int, cached_tokens: int, times: EngineTimes | None) -> None:
        self._request.prompt_tokens += prompt_tokens
        self._request.cached_tokens += cached_tokens
        self._metrics.prompt_tokens += prompt_tokens
        self._metrics.cached_tokens += cached_tokens
        self._times = times

    def output(self, tokens: int) -> None:
        if not tokens:
            return
        now_s = time.monotonic()
        request, metrics = self._request, self._metrics
        request.last_token_s = now_s
        request.output_tokens += tokens
        metrics.output_tokens += tokens
        if not self._last_s:
            if self._streamed:
                request.first_token(now_s, self._times)
        elif self._spaced:
            gap_s = now_s - self._last_s
            metrics.inter_token.observe(gap_s)
            if gap_s > request.stall_s:
                request.stall_s = gap_s
        self._last_s = now_s

    def ended(self, times: EngineTimes | None) -> None:
        if not self._streamed and self._last_s and times is not None:
            sent_s = self._request.sent_s or 0.0
            self._request.first_token(max(sent_s, self._last_s - times.decode_s), times)

    def failed(self, error: Exception) -> None:
        self._request.failure = error


_NOBODY = RequestMetrics()


def current() -> RequestRecord:
    """Of the request that this task works for; outside of one a record that nobody reads."""
    record = watch.current.get()
    return record if isinstance(record, RequestRecord) else RequestRecord(_NOBODY)
