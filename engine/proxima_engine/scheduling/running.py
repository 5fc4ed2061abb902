"""Those who run: who has come and gone since the last look, and the blocks they take on top in the coming step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from proxima_engine.policy.demand import growth_blocks
from proxima_engine.policy.view import RunningRequest, SortKey
from proxima_engine.scheduling.decoding import Decoding

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.request import Request

    from proxima_engine.scheduling.planned_queue import PlannedQueue


def cap_tokens(request: Request, max_model_len: int) -> int:
    """Output tokens that a request may have at most: what it declared, as far as the model's context holds it."""
    return min(int(request.max_tokens), max(0, max_model_len - int(request.num_prompt_tokens)))


class _Lasting(NamedTuple):
    """What stays the same while a request runs. A session that gets a new prompt waits for it first."""

    started_s: float
    key: SortKey
    prompt_tokens: int
    cap_tokens: int
    last_at: int
    """Once so many tokens are computed that no output is ahead of, the step in flight brings its last one."""


class Running:
    """Reads one scheduler. Hundreds run and each step asks, so it remembers what it can of them."""

    def __init__(self, scheduler: Scheduler, queue: PlannedQueue) -> None:
        self._scheduler = scheduler
        self._queue = queue
        self._groups = len(scheduler.kv_cache_config.kv_cache_groups)
        self._ran: list[Request] = []
        """Those who ran at the last look, in vLLM's order."""
        self._lasting: dict[str, _Lasting] = {}
        self._prefilling: dict[str, Request] = {}
        """In vLLM's order."""
        self._decoding = Decoding(scheduler.block_size)
        """Nearly all, and each has one token in a step: there is little to ask of them."""

    def forget(self) -> None:
        """The next look finds that all have started."""
        self._ran = []
        self._lasting.clear()
        self._prefilling.clear()
        self._decoding.clear()

    def look(self, now_s: float) -> tuple[list[Request], list[str]]:
        """Who has started since the last look, in vLLM's order, and who has stopped."""
        running = self._scheduler.running
        if running == self._ran:
            return [], []
        before, self._ran = self._ran, list(running)
        # Those who go on keep their order, and who starts comes after them: then one walk along both tells them apart.
        gone, going_on = [], iter(running)
        goes_on = next(going_on, None)
        for request in before:
            if request is goes_on:
                goes_on = next(going_on, None)
            else:
                gone.append(request)
        started = [] if goes_on is None else [goes_on, *going_on]
        if moved := set(gone).intersection(started):
            gone = [request for request in gone if request not in moved]
            started = [request for request in started if request not in moved]
        stopped = sorted(request.request_id for request in gone)
        for request_id in stopped:
            del self._lasting[request_id]
            self._prefilling.pop(request_id, None)
            self._decoding.remove(request_id)
        for request in started:
            self._lasting[request.request_id] = self._lasts(request, now_s)
            # vLLM appends who starts to those who run.
            self._prefilling[request.request_id] = request
        return started, stopped

    def scheduled(self, output: SchedulerOutput) -> None:
        """A step was scheduled for those who run."""
        everybody = len(output.num_scheduled_tokens) == len(self._scheduler.running)
        self._decoding.step(None if everybody else output.num_scheduled_tokens)

    def growth_blocks(self) -> int:
        """Blocks that all who ran at the last look need on top in the coming step."""
        scheduler, size = self._scheduler, self._scheduler.block_size
        if scheduler.num_lookahead_tokens or scheduler.num_spec_tokens:
            return sum(request.growth_blocks for request in self.in_order())
        # One token: a block of its own for each group where the last one is full.
        growth = sum(not self._ends_in_flight(request) for request in self._decoding.at_block_end())
        budget = scheduler.max_num_scheduled_tokens - len(self._decoding)
        if budget < sum(map(self._pending, self._prefilling.values())):
            # Then it matters who leaves its token to others.
            budget += sum(map(self._ends_in_flight, self._decoding))
        for request in list(self._prefilling.values()):
            before, pending = request.num_computed_tokens, self._pending(request)
            new = min(pending, max(0, budget))
            budget -= new
            growth += growth_blocks(before, before + new, size)
            # A prompt of which the step has room for one token has more to come.
            if new == pending == 1:
                self._decoding.add(self._prefilling.pop(request.request_id))
        return growth * self._groups

    def in_order(self) -> list[RunningRequest]:
        """Those who run now, in vLLM's order, in which they also share the tokens of a step."""
        scheduler, budget = self._scheduler, self._scheduler.max_num_scheduled_tokens
        size, lookahead = scheduler.block_size, scheduler.num_lookahead_tokens
        groups, lasting, decoding = self._groups, self._lasting, self._decoding.members
        running: list[RunningRequest] = []
        for request in scheduler.running:
            request_id, computed = request.request_id, request.num_computed_tokens
            # 0 for one who was started since.
            started_s, key, prompt, cap, last_at = lasting.get(request_id) or self._lasts(request, 0.0)
            if request_id in decoding:
                # The same as below, with less to ask.
                ahead = request.num_output_placeholders
                new = 1 if budget > 0 and not (ahead and computed - ahead >= last_at) else 0
                grown = new if not computed % size else 0
            else:
                new = min(self._pending(request), max(0, budget))
                grown = growth_blocks(computed, computed + new + lookahead, size)
            budget -= new
            blocks, generated = -(-computed // size) * groups, request.num_output_tokens
            # By the order of its fields: by name it takes twice as long, and this is for all who run.
            running.append(RunningRequest(request_id, key, blocks, grown * groups, started_s, prompt, generated, cap))
        return running

    def _lasts(self, request: Request, started_s: float) -> _Lasting:
        cap, prompt = cap_tokens(request, self._scheduler.max_model_len), request.num_prompt_tokens
        return _Lasting(started_s, self._queue.key(request), prompt, cap, prompt + request.max_tokens - 2)

    def _pending(self, request: Request) -> int:
        """Tokens that it would compute in the coming step if there were no bound."""
        if self._ends_in_flight(request):
            return 0
        pending: int = request.num_tokens_with_spec + request.num_output_placeholders - request.num_computed_tokens
        return pending

    @staticmethod
    def _ends_in_flight(request: Request) -> bool:
        """Whether the step in flight brings its last token at the latest: vLLM's own test for not running it again."""
        ahead = request.num_output_placeholders
        return bool(ahead and request.num_computed_tokens + 2 - ahead >= request.num_prompt_tokens + request.max_tokens)
