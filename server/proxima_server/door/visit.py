"""One request from the door to the end of its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from starlette.responses import Response

from proxima_config.api_keys import ApiKey
from proxima_server.door.books import Entry
from proxima_server.door.deadlines import Deadline, Deadlines, Watch
from proxima_server.door.size import Size
from proxima_server.serving import Answer, EventSource


@dataclass(eq=False)
class Visit:
    key: ApiKey
    entry: Entry
    size: Size
    deadlines: Deadlines
    arrived_s: float
    """On the clock of the event loop."""
    reserved_tokens: int
    """Taken from the key's tokens a minute, until it is known how many they were."""
    granted: asyncio.Event = field(default_factory=asyncio.Event)
    """Its turn has come."""
    stream: VisitedStream | None = None
    events: int = 0
    """Events of its stream so far: about as many as tokens."""
    refused: bool = False
    """By the serving layer, before anything was computed."""
    served: bool = False
    """Its answer is complete."""
    expired: Deadline | None = None
    left: bool = False


class VisitedStream:
    """Events of a visit's answer; calls `leave` when it ends, however it ends. Without a `source`, `ask` asks for one
    with the first event."""

    def __init__(
        self,
        visit: Visit,
        watch: Watch,
        ask: Callable[[], Awaitable[Answer]],
        leave: Callable[[], None],
        source: EventSource | None = None,
    ) -> None:
        self._visit = visit
        self._watch = watch
        self._ask = ask
        self._leave = leave
        self._source = source
        self._pulling = False

    async def __anext__(self) -> str:
        self._pulling = True
        try:
            async with self._watch.limit():
                if self._source is None:
                    answer = await self._ask()
                    assert not isinstance(answer, bytes | Response)  # noqa: S101 - the body asks for a stream
                    self._source = answer
                event = await anext(self._source)
        except BaseException as error:
            self._visit.served = isinstance(error, StopAsyncIteration)
            await self.aclose()
            raise
        finally:
            self._pulling = False
        self._visit.events += 1
        return event

    async def give_up(self) -> None:
        """Abort the generation although nobody asks for the next event: the client may be slow to read."""
        if not self._pulling:
            await self.aclose()

    async def aclose(self) -> None:
        try:
            if self._source is not None:
                await self._source.aclose()
        finally:
            self._leave()
