"""Drives a workload: sends its conversations when they are due, and hands each ended request on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from proxima_bench.arrivals import Closed
from proxima_bench.exchange import Clock, Exchange, Outcome
from proxima_bench.loads import Load
from proxima_bench.workload import Conversation, Message, Turn


class Sender(Protocol):
    """What Client is to the runner."""

    async def exchange(self, load: Load, history: Sequence[Message], turn: Turn, record: Exchange) -> None: ...


@dataclass
class Progress:
    """Counts for whoever watches."""

    planned: int = 0
    measuring: bool = False
    """False in the warm-up."""
    in_flight: int = 0
    ended: int = 0
    errors: int = 0
    output_tokens: int = 0


@dataclass
class Run:
    """One measurement: all requests that were offered, and when."""

    exchanges: list[Exchange]
    start_s: float
    end_s: float
    """When the last request ended."""

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


@dataclass
class Runner:
    sender: Sender
    clock: Clock
    progress: Progress = field(default_factory=Progress)

    async def warm_up(self, load: Load, conversations: Sequence[Conversation], records: list[Exchange]) -> None:
        """Send conversations that are not measured, and wait for their answers; ``records`` grows meanwhile."""
        self.progress = Progress(planned=_turns(conversations))
        at_once = load.shape.concurrency if isinstance(load.shape, Closed) else len(conversations)
        await self._closed(load, conversations, max(1, at_once), records)

    async def measure(self, load: Load, conversations: Sequence[Conversation]) -> Run:
        self.progress = Progress(planned=_turns(conversations), measuring=True)
        records: list[Exchange] = []
        start_s = self.clock()
        if isinstance(load.shape, Closed):
            await self._closed(load, conversations, load.shape.concurrency, records)
        else:
            await self._open(load, conversations, start_s, records)
        records.sort(key=lambda record: (record.conversation, record.turn))
        return Run(records, start_s, max((record.ended_s for record in records), default=start_s))

    async def _closed(
        self, load: Load, conversations: Sequence[Conversation], at_once: int, records: list[Exchange]
    ) -> None:
        waiting = enumerate(conversations)

        async def client() -> None:
            # All clients take from one queue.
            for index, conversation in waiting:
                await self._converse(load, index, conversation, None, records)

        await _all(client() for _ in range(min(at_once, len(conversations))))

    async def _open(
        self, load: Load, conversations: Sequence[Conversation], start_s: float, records: list[Exchange]
    ) -> None:
        async with asyncio.TaskGroup() as group:
            for index, conversation in sorted(enumerate(conversations), key=lambda each: each[1].arrival_s or 0.0):
                due_s = start_s + (conversation.arrival_s or 0.0)
                if (wait_s := due_s - self.clock()) > 0:
                    await asyncio.sleep(wait_s)
                group.create_task(self._converse(load, index, conversation, due_s, records))

    async def _converse(
        self, load: Load, index: int, conversation: Conversation, due_s: float | None, records: list[Exchange]
    ) -> None:
        """The turns one after the other; a turn without an answer ends the conversation, the rest counts as errors."""
        history: list[Message] = []
        broken = False
        for number, turn in enumerate(conversation.turns):
            record = Exchange(index, number, turn.output_tokens, due_s=due_s if number == 0 else None)
            records.append(record)
            if broken:
                record.code = str(Outcome.NOT_SENT)
                record.sent_s = record.ended_s = self.clock()
            else:
                self.progress.in_flight += 1
                await self.sender.exchange(load, history, turn, record)
                self.progress.in_flight -= 1
                history += [*turn.messages, {"role": "assistant", "content": "".join(record.texts)}]
                broken = record.outcome is not Outcome.COMPLETED
            record.texts.clear()
            self.progress.ended += 1
            self.progress.errors += record.error
            self.progress.output_tokens += record.output_tokens


def _turns(conversations: Sequence[Conversation]) -> int:
    return sum(len(conversation.turns) for conversation in conversations)


async def _all(clients: Iterable[Coroutine[Any, Any, None]]) -> None:
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client)
