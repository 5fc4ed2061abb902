"""Bytes of an answer to pieces: server-sent events of the OpenAI API, lines of `/generate`, and whole answers.

This is the client's hot path, a few microseconds a chunk: typed decoding, and nothing kept that nobody asks for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from proxima_bench.loads import Api


class AnswerError(Exception):
    """The answer is no answer. ``code`` is error_event or bad_answer."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Message(msgspec.Struct):
    """A `delta` or a `message` of chat."""

    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: Any = None
    role: str | None = None

    @property
    def said(self) -> bool:
        return bool(self.content or self.reasoning or self.reasoning_content or self.tool_calls)


class _Choice(msgspec.Struct):
    delta: _Message | None = None
    message: _Message | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Body(msgspec.Struct):
    """Chunk or whole answer of chat and completions; `/generate` has `text` instead of choices."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    text: list[str] | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Body).decode


@dataclass(slots=True)
class Piece:
    """What one event of an answer says."""

    token: bool = False
    """At least one token came with it."""
    text: str = ""
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    done: bool = False
    """The server says that the answer is complete."""


class Reader:
    """Splits the bytes of one streamed answer, which the network cuts anywhere."""

    def __init__(self, api: Api, echoed: int = 0) -> None:
        """``echoed``: characters of the prompt, which `/generate` puts before each of its texts."""
        self._generate = api is Api.GENERATE
        self._rest = b""
        self._length = echoed

    def feed(self, data: bytes) -> Iterator[Piece]:
        """The pieces that are complete with ``data``. Raises AnswerError."""
        lines = (self._rest + data).replace(b"\0", b"\n").split(b"\n")
        # vLLM's own example server ends the lines of `/generate` with a zero byte, others with a newline.
        self._rest = lines.pop()
        for line in lines:
            if piece := self._piece(line.strip()):
                yield piece

    def end(self) -> Iterator[Piece]:
        """What stood in a last line without a newline."""
        yield from self.feed(b"\n")

    def _piece(self, line: bytes) -> Piece | None:
        if self._generate:
            return self._generated(line) if line else None
        if not line.startswith(b"data:"):
            # Empty lines end events, lines with a colon in front are pings; `event:` and `id:` add nothing here.
            return None
        payload = line[5:].strip()
        return Piece(done=True) if payload == b"[DONE]" else _chunk(payload)

    def _generated(self, line: bytes) -> Piece:
        body = _body(line)
        if body.text is None:
            raise AnswerError("bad_answer", f"no text in {line[:200]!r}")
        text = body.text[0] if body.text else ""
        # Texts repeat all that came before; an unchanged one is a token that shows nothing yet.
        piece = Piece(token=True, text=text[self._length :])
        self._length = max(self._length, len(text))
        return piece


def whole(data: bytes, api: Api, echoed: int = 0) -> Piece:
    """An answer that was not streamed. Raises AnswerError."""
    body = _body(data)
    if api is Api.GENERATE:
        if not body.text:
            raise AnswerError("bad_answer", f"no text in {data[:200]!r}")
        return Piece(token=True, text=body.text[0][echoed:], done=True)
    if not body.choices:
        raise AnswerError("bad_answer", f"no choices in {data[:200]!r}")
    choice = body.choices[0]
    text = choice.message.content if choice.message else choice.text
    shown = text if isinstance(text, str) else ""
    return _with_usage(Piece(token=True, text=shown, finish_reason=choice.finish_reason, done=True), body.usage)


def error_text(data: bytes) -> str:
    """The message in an error's body, whatever its form."""
    try:
        error = msgspec.json.decode(data)
    except msgspec.DecodeError:
        return data[:200].decode(errors="replace")
    if isinstance(error, dict):
        error = error.get("error", error.get("detail", error))
    return str(error.get("message", error) if isinstance(error, dict) else error)[:500]


def _chunk(payload: bytes) -> Piece:
    body = _body(payload)
    piece = Piece()
    if body.choices:
        choice = body.choices[0]
        delta = choice.delta
        piece.finish_reason = choice.finish_reason
        if delta is None:
            piece.text = choice.text or ""
            piece.token = bool(piece.text) or choice.finish_reason is None
        else:
            piece.text = delta.content if isinstance(delta.content, str) else ""
            # The bare role opens a message, and the bare reason ends it; every other chunk carries a token, even when
            # its text is still empty (half a character).
            piece.token = delta.said or (delta.role is None and choice.finish_reason is None)
    return _with_usage(piece, body.usage)


def _with_usage(piece: Piece, usage: _Usage | None) -> Piece:
    if usage is not None:
        piece.prompt_tokens, piece.output_tokens = usage.prompt_tokens, usage.completion_tokens
    return piece


def _body(data: bytes) -> _Body:
    try:
        body = _decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise AnswerError("bad_answer", f"{error} in {data[:200]!r}") from error
    if body.error is not None:
        raise AnswerError("error_event", error_text(data))
    return body
