"""Documents that are built once per tick, whoever and however many look; and not at all while nobody does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable


class Feed:
    """`build` makes the document. All methods are called on one event loop."""

    def __init__(self, build: Callable[[], bytes], interval_s: float = 1.0) -> None:
        self._build = build
        self.interval_s = interval_s
        self._document = b""
        self._tick = -1

    def latest(self) -> bytes:
        """The document of this tick."""
        tick = self._now_tick()
        if tick != self._tick:
            self._document = self._build()
            self._tick = tick
        return self._document

    async def follow(self, ended: asyncio.Event) -> AsyncIterator[bytes]:
        """The document of now and of each tick to come, as server-sent events, until `ended`."""
        while True:
            yield b"data: " + self.latest() + b"\n\n"
            if ended.is_set():
                return
            # All who follow wake at the same moment, so that what they get is new.
            loop = asyncio.get_running_loop()
            pause_s = self.interval_s - loop.time() % self.interval_s
            waiting = asyncio.ensure_future(ended.wait())
            await asyncio.wait({waiting}, timeout=pause_s)
            waiting.cancel()
            if ended.is_set():
                # The last document is of the end, not of the tick before it.
                self._tick = -1

    def _now_tick(self) -> int:
        return int(asyncio.get_running_loop().time() / self.interval_s)
