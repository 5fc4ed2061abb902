"""The door in front of the engine: every request to the model goes through `Door.answer`."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fastapi import Request
from starlette.responses import Response

from proxima_config.api_keys import ApiKey
from proxima_config.hints import RequestClass
from proxima_config.settings import ProximaSettings
from proxima_engine.telemetry import SchedulerSnapshot
from proxima_server.answer_notes import notes_of
from proxima_server.door.answer_lengths import AnswerLengths
from proxima_server.door.attainment import Attainment
from proxima_server.door.auth import key_of
from proxima_server.door.books import Books, EngineView, Entry
from proxima_server.door.classes import LEVELS, class_of
from proxima_server.door.deadlines import HEADER, Deadline, Deadlines, Watch, asked_timeout_s, deadlines_of
from proxima_server.door.fair_queue import Waiter
from proxima_server.door.keys import Keys
from proxima_server.door.limits import Usage
from proxima_server.door.pace import Pace
from proxima_server.door.refusals import Refusals
from proxima_server.door.size import PromptLengths, Size, size_of
from proxima_server.door.spent import spent_tokens
from proxima_server.door.turns import Turns
from proxima_server.door.view import engine_view
from proxima_server.door.visit import Visit, VisitedStream
from proxima_server.errors import APIError
from proxima_server.hints import Hints
from proxima_server.observability.record import current
from proxima_server.serving import Answer, ServingLayer

# The tokenizer answers these.
_WITHOUT_ENGINE = frozenset({"/tokenize", "/detokenize", "/v1/messages/count_tokens"})
_FIRST_OUTPUT_TOKENS = 128.0
"""Expected of a request until answers have been counted."""
_OUTPUT_WEIGHT = 0.05
"""Share of the newest answer in the average."""


class Door:
    """Admits requests in turn, and ends them at their deadlines. All methods are called on one event loop."""

    def __init__(
        self,
        settings: ProximaSettings,
        snapshots: Callable[[], Mapping[int, SchedulerSnapshot]],
        *,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._settings = settings
        self._snapshots = snapshots
        self._clock = clock
        self.keys = Keys(settings.auth)
        self.books = Books(settings.door)
        self.attainment = Attainment()
        self.refusals = Refusals(self.books, self.attainment, draw)
        self.expired: Counter[Deadline] = Counter()
        max_wait_s = settings.scheduler.max_wait_s or math.inf
        # With one tenant there are no turns to keep, and the scheduler should see everybody.
        self.turns = Turns(self.books, self.view, clock, kept=self.keys.required, max_wait_s=max_wait_s)
        self._lengths = PromptLengths()
        self._answers = AnswerLengths()
        self._pace = Pace()
        self._output_tokens = _FIRST_OUTPUT_TOKENS
        self._usages: dict[str, Usage] = {}

    # -- the way of a request --------------------------------------------------------------------------------------

    async def answer(
        self,
        serving: ServingLayer,
        path: str,
        body: dict[str, Any],
        request: Request,
        asked: RequestClass | None = None,
    ) -> Answer:
        """What `serving` answers, once it is the request's turn. `asked` is the class that it asks for.

        Raises APIError: a refusal, a passed deadline, or what the serving layer raises.
        """
        if path in _WITHOUT_ENGINE:
            self.refusals.check_model(key_of(request.state), body.get("model"))
            return await serving.answer(path, body, request)
        visit = self._admit(body, request, asked)
        watch = self._watch(visit, partial(serving.has_first_token, request))
        leave = partial(self._leave, visit, watch)

        async def ask() -> Answer:
            await visit.granted.wait()
            self._tell_scheduler(visit, request)
            try:
                return await serving.answer(path, body, request)
            except APIError as error:
                visit.refused = error.status < 500
                raise

        try:
            self.turns.join(visit)
            if body.get("stream") is True and not visit.granted.is_set():
                visit.stream = VisitedStream(visit, watch, ask, leave)
                return visit.stream
            async with watch.limit():
                answer = await ask()
        except BaseException:
            leave()
            raise
        if isinstance(answer, bytes | Response):
            visit.served = True
            leave()
            return answer
        visit.stream = VisitedStream(visit, watch, ask, leave, answer)
        return visit.stream

    def _admit(self, body: dict[str, Any], request: Request, asked: RequestClass | None) -> Visit:
        """Raises APIError for a request that is refused; then it has left no trace but a count."""
        key = key_of(request.state)
        self.refusals.check_model(key, body.get("model"))
        deadlines = deadlines_of(self._settings.deadlines, key, asked_timeout_s(request.headers.get(HEADER), body))
        size = size_of(body)
        entry = self._entry(key, size, asked)
        now_s, view = self._clock(), self.view()
        self.books.pass_time(now_s, view)
        usage = self.usage_of(key)
        reserved = entry.prompt_tokens + (size.declared_tokens or 0)
        self.refusals.check_limits(usage, reserved, now_s)
        try:
            self.refusals.check_room(entry, view)
            if self._settings.door.refuse_early:
                self._check_deadlines(entry, size, deadlines, now_s, view)
        except APIError:
            usage.take_back(now_s, reserved)
            raise
        return Visit(key, entry, size, deadlines, asyncio.get_running_loop().time(), reserved)

    def _check_deadlines(self, entry: Entry, size: Size, deadlines: Deadlines, now_s: float, view: EngineView) -> None:
        start_s = self.books.forecast_start_s(entry, self.turns.before(entry), view)
        self.refusals.check_start(start_s, deadlines.earliest())
        end_s = self._forecast_end_s(entry, size, start_s or 0.0, now_s, view)
        self.refusals.check_end(end_s, deadlines.total_s)
        self.refusals.check_attainment(entry, deadlines, now_s, view)

    def _forecast_end_s(self, entry: Entry, size: Size, start_s: float, now_s: float, view: EngineView) -> float | None:
        """When the answer would be complete, at the earliest that can be argued for, if it starts in `start_s`; None if
        nothing is known. An engine that nobody uses is asked: it may have become faster."""
        others = self.books.on_their_way(entry.waiter.level)
        waits = self.books.waiting(entry.waiter.level, view).sequences > 0
        step_s = self._pace.step_s(view.running if waits else others + entry.sequences, now_s)
        if not others or step_s is None:
            return None
        return start_s + self._answers.at_least(size) * step_s

    def _entry(self, key: ApiKey, size: Size, asked: RequestClass | None) -> Entry:
        prompt_tokens = self._lengths.estimate(size)
        request_class = class_of(key, asked, prompt_tokens, self._settings.door.long_prompt_tokens)
        output = self._output_tokens * size.sequences
        cost = prompt_tokens + (output if size.declared_tokens is None else min(output, size.declared_tokens))
        waiter = Waiter(key.name, key.weight, LEVELS[request_class], cost, self._clock())
        return Entry(request_class, size.sequences, prompt_tokens, waiter)

    def _watch(self, visit: Visit, has_token: Callable[[], bool]) -> Watch:
        record, deadlines = current(), visit.deadlines
        record.note_admission(visit.entry.request_class.value, deadlines.first_token_s, deadlines.total_s)

        def expired(which: Deadline) -> None:
            self.expired[which] += 1
            visit.expired = which
            record.given_up = which is Deadline.TOTAL and visit.deadlines.total_asked
            if visit.stream is not None:
                asyncio.ensure_future(visit.stream.give_up())  # noqa: RUF006 - the stream holds it

        def waits() -> bool:
            return not visit.granted.is_set() or self.view().waiting != 0

        return Watch(visit.deadlines, visit.arrived_s, waits=waits, has_token=has_token, expired=expired)

    def _tell_scheduler(self, visit: Visit, request: Request) -> None:
        """As it counts from when it gets the request, the time at the door is over for it."""
        waited_s = asyncio.get_running_loop().time() - visit.arrived_s

        def left(budget_s: float | None) -> float | None:
            return None if budget_s is None else max(0.001, budget_s - waited_s)

        known = self.keys.required
        request.state.hints = Hints(
            visit.entry.request_class,
            left(visit.deadlines.first_token_s),
            left(visit.deadlines.total_s),
            visit.key.name if known else None,
            visit.key.weight if known else None,
            trust_client=visit.key.trust_hints,
        )
        notes_of(request).door_wait_s = waited_s

    def _leave(self, visit: Visit, watch: Watch) -> None:
        if visit.left:
            return
        visit.left = True
        watch.close()
        self._note_outcome(visit)
        spent = spent_tokens(visit, current())
        if spent.counted:
            self._lengths.learn(visit.size, spent.prompt)
            per_answer = spent.output / visit.entry.sequences
            self._answers.learn(visit.size, round(per_answer))
            self._output_tokens += _OUTPUT_WEIGHT * (per_answer - self._output_tokens)
        self.usage_of(visit.key).settle(self._clock(), visit.reserved_tokens, spent.prompt + spent.output)
        cost = spent.prompt + spent.output - visit.entry.waiter.cost
        self.turns.leave(visit, cost, served=visit.served or visit.events > 0)

    def _note_outcome(self, visit: Visit) -> None:
        """Which of its deadlines it has met; who left by itself, or never reached the engine, shows nothing."""
        if not visit.granted.is_set():
            return
        level, now_s = visit.entry.waiter.level, self._clock()
        on_their_way = self.books.on_their_way(level)
        for which, seconds in visit.deadlines.timed():
            begun = which is not Deadline.TOTAL and visit.events > 0
            if which is visit.expired or visit.served or begun:
                met = which is not visit.expired
                self.attainment.note((which, seconds), level, met=met, on_their_way=on_their_way, now_s=now_s)

    # -- what others ask -------------------------------------------------------------------------------------------

    def view(self) -> EngineView:
        snapshots = self._snapshots()
        self._pace.note(snapshots, self._clock())
        return engine_view(self._settings, snapshots)

    def usage_of(self, key: ApiKey) -> Usage:
        now_s = self._clock()
        usage = self._usages.get(key.name)
        if usage is None:
            usage = self._usages[key.name] = Usage(key, now_s)
        usage.follow(key, now_s)
        return usage

    def limit_headers(self, key: ApiKey) -> dict[str, str]:
        """`x-ratelimit-*` for answers to `key`."""
        return self.usage_of(key).headers(self._clock())

    def retry_s(self) -> float:
        """Seconds after which somebody who was sent away should come back."""
        return self.refusals.retry_s(self.view())
