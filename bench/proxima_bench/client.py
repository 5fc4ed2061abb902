"""Sends one request and records what comes back.

aiohttp, because it was measured to be the cheapest of the clients at hand (docs/benchmarking.md).
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import aiohttp
import msgspec

from proxima_bench import wire
from proxima_bench.exchange import Clock, Exchange, Outcome
from proxima_bench.loads import Api, Load
from proxima_bench.target import Target, body
from proxima_bench.workload import Message, Turn
from proxima_config.errors import ProximaError

_REFUSALS = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_PROBE_TIMEOUT_S = 30
# Shorter than servers keep idle connections (uvicorn: 5 s), or a request could meet one that is just being closed.
_KEEPALIVE_S = 2.0


class Client:
    """Requests of one load to one target, over connections that are shared among them."""

    def __init__(self, session: aiohttp.ClientSession, target: Target, clock: Clock) -> None:
        self._session = session
        self._target = target
        self._clock = clock

    def for_target(self, target: Target) -> Client:
        """The same connections, for a target known better."""
        return Client(self._session, target, self._clock)

    async def exchange(self, load: Load, history: Sequence[Message], turn: Turn, record: Exchange) -> None:
        """Send the turn and fill in ``record``; every way in which a server can fail ends in an outcome."""
        record.streamed = load.stream
        request = body(load, self._target.model, history, turn)
        leave_s = load.cancel_after_s if turn.leaves and load.cancel_after_s < load.timeout_s else None
        record.sent_s = self._clock()
        try:
            async with asyncio.timeout(load.timeout_s if leave_s is None else leave_s):
                await self._send(load, request, record)
        except TimeoutError:
            _end(record, *(Outcome.TIMED_OUT, "timeout") if leave_s is None else (Outcome.WITHDRAWN, "withdrawn"))
        except wire.AnswerError as error:
            _end(record, Outcome.FAILED, error.code, str(error))
        except aiohttp.ClientConnectorError as error:
            _end(record, Outcome.FAILED, "connect", str(error))
        except aiohttp.ClientError as error:
            _end(record, Outcome.CUT_OFF, "cut_off", str(error) or type(error).__name__)
        except OSError as error:
            _end(record, Outcome.CUT_OFF, "cut_off", str(error))
        record.ended_s = self._clock()

    async def count_tokens(self, request: dict[str, Any]) -> int | None:
        """Tokens of a `/tokenize` body; None where the server has no such endpoint or does not answer."""
        model = {"model": self._target.model} if self._target.model else {}
        try:
            answer = await self._json("POST", "/tokenize", json={**model, **request})
        except (aiohttp.ClientError, OSError):
            return None
        count = answer.get("count") if isinstance(answer, dict) else None
        return count if isinstance(count, int) else None

    async def text(self, url: str) -> str | None:
        """A page such as /metrics; None where there is none."""
        try:
            async with (
                asyncio.timeout(_PROBE_TIMEOUT_S),
                self._session.get(url, headers=self._target.headers) as answer,
            ):
                return await answer.text(errors="replace") if answer.status == HTTPStatus.OK else None
        except (aiohttp.ClientError, OSError):
            return None

    async def first_model(self) -> str:
        """The model to name when the user named none. Raises ProximaError when nobody answers."""
        try:
            answer = await self._json("GET", "/v1/models")
        except (aiohttp.ClientError, OSError) as error:
            raise ProximaError(f"no answer from {self._target.root}: {error or type(error).__name__}") from error
        models = answer.get("data") if isinstance(answer, dict) else None
        if not models:
            raise ProximaError(f"{self._target.root}/v1/models lists no model; name one with --model")
        return str(models[0]["id"])

    async def _json(self, method: str, path: str, **request: Any) -> Any:
        async with (
            asyncio.timeout(_PROBE_TIMEOUT_S),
            self._session.request(method, self._target.root + path, headers=self._target.headers, **request) as answer,
        ):
            if answer.status != HTTPStatus.OK:
                return None
            try:
                return msgspec.json.decode(await answer.read())
            except msgspec.DecodeError:
                return None

    async def _send(self, load: Load, request: dict[str, Any], record: Exchange) -> None:
        url, headers = self._target.path(load.api), self._target.headers
        echoed = len(request.get("prompt", ""))
        async with self._session.post(url, json=request, headers=headers) as answer:
            if answer.status != HTTPStatus.OK:
                outcome = Outcome.REFUSED if answer.status in _REFUSALS else Outcome.FAILED
                _end(record, outcome, f"http_{answer.status}", wire.error_text(await answer.read()))
            elif load.stream:
                await self._read_stream(load.api, echoed, answer.content, record)
            else:
                piece = wire.whole(await answer.read(), load.api, echoed)
                self._take(piece, record, self._clock())
                _end(record, Outcome.COMPLETED)

    async def _read_stream(self, api: Api, echoed: int, content: aiohttp.StreamReader, record: Exchange) -> None:
        reader, done = wire.Reader(api, echoed), False
        async for data in content.iter_any():
            now_s = self._clock()
            for piece in reader.feed(data):
                done |= self._take(piece, record, now_s)
        for piece in reader.end():
            done |= self._take(piece, record, self._clock())
        # `/generate` has no last word, and some servers leave out [DONE]: a clean end after a reason is one, too.
        whole = done or record.finish_reason is not None or api is Api.GENERATE
        if not whole:
            _end(record, Outcome.CUT_OFF, "cut_off", "the stream ended before the answer did")
        elif not record.token_times_s:
            _end(record, Outcome.FAILED, "empty", "the answer has no token")
        else:
            _end(record, Outcome.COMPLETED)

    @staticmethod
    def _take(piece: wire.Piece, record: Exchange, now_s: float) -> bool:
        # An answer whose only token is its end has one token, though nothing to show.
        if piece.token or (piece.finish_reason and not record.token_times_s):
            record.token_times_s.append(now_s)
            record.texts.append(piece.text)
        if piece.finish_reason is not None:
            record.finish_reason = piece.finish_reason
        if piece.output_tokens is not None:
            record.prompt_tokens, record.usage_tokens = piece.prompt_tokens, piece.output_tokens
        return piece.done


@asynccontextmanager
async def connect(
    target: Target, clock: Clock, connector: aiohttp.BaseConnector | None = None
) -> AsyncIterator[Client]:
    """A client with as many connections as requests are in flight. ``connector`` replaces TCP."""
    _allow_many_connections()
    # No limits and no timeouts of its own: a request that waits inside the client would look like a slow server.
    session = aiohttp.ClientSession(
        connector=connector or aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
        # Compression would hold back chunks and cost the client time.
        headers={"Accept-Encoding": "identity"},
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        read_bufsize=1 << 18,
    )
    async with session:
        yield Client(session, target, clock)


def _end(record: Exchange, outcome: Outcome, code: str = "", detail: str = "") -> None:
    record.outcome, record.code, record.detail = outcome, code, detail


def _allow_many_connections() -> None:
    """Each stream is an open file, and the usual soft limit is 1,024."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
