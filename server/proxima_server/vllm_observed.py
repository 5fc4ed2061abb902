"""What the engine does with a request, seen where vLLM's handlers ask it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from vllm.exceptions import RetryableRequestError, VLLMValidationError
from vllm.v1.engine.async_llm import AsyncLLM

from proxima_server import streaming
from proxima_server.answer_notes import AnswerNotes


@dataclass(slots=True)
class Observed:
    """What the engine did with the request of this task."""

    notes: AnswerNotes
    failure: Exception | None = None


observed_request: ContextVar[Observed | None] = ContextVar("observed_request", default=None)


class ObservedClient:
    """The engine's client with eyes on its answers: when they began, and why they failed.

    vLLM's handlers turn failures into events of their protocols, of which some no longer say what failed.
    """

    def __init__(self, client: AsyncLLM) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def generate(self, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        return self._watch(
            self._client.generate(*args, **kwargs), args[1] if len(args) > 1 else None, observed_request.get()
        )

    async def _watch(
        self, outputs: AsyncGenerator[Any, None], params: Any, observed: Observed | None
    ) -> AsyncGenerator[Any, None]:
        async with aclosing(outputs):
            try:
                async for output in outputs:
                    if observed is not None and observed.notes.engine_wait_s is None:
                        _note_wait(observed.notes, output)
                    if output.finished:
                        _raise_if_failed(output, params)
                    yield output
            except Exception as error:
                if observed is not None:
                    observed.failure = error
                raise


def _note_wait(notes: AnswerNotes, output: Any) -> None:
    """`output` has times unless vLLM's statistics are off."""
    times = getattr(output, "metrics", None)
    if times is not None and times.scheduled_ts > 0:
        notes.engine_wait_s = max(0.0, times.scheduled_ts - times.queued_ts)


def _raise_if_failed(output: Any, params: Any) -> None:
    reasons = {choice.finish_reason for choice in output.outputs}
    if streaming.ABORTED in reasons:
        raise RetryableRequestError(streaming.ABORTED_MESSAGE)
    if "error" in reasons and getattr(params, "structured_outputs", None) is not None:
        # The engine fails a single request where its grammar has no way to begin, or to go on. It does not say more.
        raise VLLMValidationError("No text can be generated that fits the given schema or grammar")
