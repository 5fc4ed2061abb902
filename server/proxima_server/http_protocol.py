"""HTTP on one connection: uvicorn's protocol with bounds on what a client may send, and on how slowly.

uvicorn leaves these to a proxy in front. Without them a few thousand connections that each send a byte a minute, or
read none, take all sockets and memory of a gateway that is asked directly.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from proxima_config.settings import ServerSettings
from proxima_server.errors import APIError, ErrorCode

BODY_BYTES_PER_S = 1024
"""What a body must arrive at on average; each second's worth that arrives earns one second."""

DISCARD_BYTES = 1024 * 1024
"""What is read of refused bodies at least, so that an honest client gets to read the refusal."""


@dataclass(frozen=True)
class Limits:
    """Bounds of one connection, in bytes and seconds; see ServerSettings."""

    max_header_bytes: int
    max_body_bytes: int
    header_timeout_s: float
    body_timeout_s: float
    send_timeout_s: float

    @classmethod
    def of(cls, settings: ServerSettings) -> Limits:
        return cls(**{name: getattr(settings, name) for name in cls.__dataclass_fields__})


def protocol_class(settings: ServerSettings) -> type[GuardedProtocol]:
    """The protocol with the limits of `settings`, for uvicorn's `http`."""
    return type("Protocol", (GuardedProtocol,), {"limits": Limits.of(settings)})


class GuardedProtocol(HttpToolsProtocol):
    limits: ClassVar[Limits]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._reading: asyncio.TimerHandle | None = None
        self._sending: asyncio.TimerHandle | None = None
        self._in_headers = True
        self._header_bytes = 0
        self._discarded_bytes = 0
        self._refused = False
        self._body_due_s = 0.0

    # -- connection ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_reading_timer()
        if self._sending is not None:
            self._sending.cancel()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        # A client that has not even read its last answer would keep the connection open for ever.
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        super().timeout_keep_alive_handler()

    def shutdown(self) -> None:
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self.scheme == "https" and not self.transport.get_write_buffer_size():
            # Closing politely waits for the client's farewell, which an idle one sends when it next looks.
            self.transport.abort()
        super().shutdown()

    # -- headers ---------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._in_headers and self._reading is None:
            self._await_headers()
        # The parser keeps an unfinished header to itself, however long it is.
        self._header_bytes += len(data) if self._in_headers else 0
        super().data_received(data)
        if self._in_headers and self._header_bytes > self.limits.max_header_bytes:
            self._refuse_headers()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        self._in_headers, self._header_bytes = False, 0
        self._stop_reading_timer()
        if size > self.limits.max_header_bytes:
            self._refuse_headers()
            return
        super().on_headers_complete()
        self._body_due_s = self.loop.time() + self.limits.body_timeout_s
        self._await_body()

    def _await_headers(self) -> None:
        self._reading = self.loop.call_later(self.limits.header_timeout_s, self._headers_late)

    def _headers_late(self) -> None:
        self._reading = None
        if self._header_bytes:
            self._refuse(ErrorCode.REQUEST_TIMEOUT, f"No complete headers in {self.limits.header_timeout_s:g} s")
        else:
            self.transport.close()

    def _refuse_headers(self) -> None:
        self._refuse(
            ErrorCode.HEADERS_TOO_LARGE,
            f"The request line and headers are larger than {self.limits.max_header_bytes} bytes",
        )

    # -- body ------------------------------------------------------------------------------------------------------

    def on_body(self, body: bytes) -> None:
        if self._refused:
            return
        latest_s = self.loop.time() + self.limits.body_timeout_s
        self._body_due_s = min(self._body_due_s + len(body) / BODY_BYTES_PER_S, latest_s)
        if self.cycle.response_complete:
            # Answered before it was read, with 413 for instance. Reading on lets the client see that answer.
            self._discarded_bytes += len(body)
            if self._discarded_bytes > max(self.limits.max_body_bytes, DISCARD_BYTES):
                self.transport.abort()
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._stop_reading_timer()
        self._in_headers = True
        if not self._refused:
            super().on_message_complete()

    def _await_body(self) -> None:
        self._reading = self.loop.call_at(self._body_due_s, self._body_late)

    def _body_late(self) -> None:
        if self.flow.read_paused:
            # We are the slow one.
            self._body_due_s = self.loop.time() + self.limits.body_timeout_s
        if self.loop.time() < self._body_due_s:
            self._await_body()
            return
        self._reading = None
        if self.cycle.response_started:
            self.transport.close()
        else:
            self._refuse(
                ErrorCode.REQUEST_TIMEOUT, f"The request body did not arrive within {self.limits.body_timeout_s:g} s"
            )

    # -- answers ---------------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._sending is None:
            self._sending = self.loop.call_later(self.limits.send_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None
        super().resume_writing()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing() and self.transport.get_write_buffer_size():
            self.pause_writing()

    def send_400_response(self, msg: str) -> None:
        """In the shape of all errors, where uvicorn sends plain text."""
        self._refuse(ErrorCode.INVALID_HTTP, msg)

    def _refuse(self, code: ErrorCode, message: str) -> None:
        """Answer below the application, and close."""
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        error = APIError(code, message)
        body = json.dumps(error.body()).encode()
        headers = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[error.status] + headers + body)
        self.transport.close()

    def _stop_reading_timer(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
