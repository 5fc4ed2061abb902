"""A scripted server on a real TCP port, for commands that run a loop of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web
from scripted_server import ScriptedServer


@contextmanager
def listening(server: ScriptedServer) -> Iterator[str]:
    """The server on a TCP port, in a thread with a loop of its own."""
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(server.app(), access_log=None, handler_cancellation=True)

    async def start() -> str:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        return f"http://{host}:{port}"

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(start(), loop).result()
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
