"""The real gateway over an engine that says one word to each request and then nothing more, in a process of its own.

Prints its URL when it answers.
"""

from __future__ import annotations

import asyncio
import logging

import uvloop
from fake_gateway import fake_gateway

from proxima_config.settings import LoggingSettings
from proxima_server import logs


async def serve() -> None:
    logs.configure(LoggingSettings())
    logging.getLogger("httpx").setLevel("WARNING")
    async with fake_gateway() as gateway:
        await gateway.ready()
        gateway.serving.hold.clear()
        print(gateway.client.base_url, flush=True)  # noqa: T201 - read by the test
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve())
