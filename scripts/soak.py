"""Load a gateway for minutes or hours with requests that end in every way, and see that nothing of them stays.

    make soak MINUTES=2                                          # the embedded model
    .venv/bin/python scripts/soak.py --minutes 480 MODEL -- --scheduler native

Load and rest alternate. In each rest nothing may be left: no KV block, no request, no task, no socket. Memory of the
gateway and of the engine is compared between the rests after the first quarter, when caches have filled, and the end.
Prints one line of JSON for each rest and one with the verdict; exit code 1 says that something grew.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import re
import socket
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil

WORKERS = 32
LOAD_S = 15.0
SETTLE_TIMEOUT_S = 60.0
SETTLED_S = 1.0
"""Snapshots of the scheduler and closing of sockets are a little late."""
MAX_OUTPUT_TOKENS = 200

NOISE_MIB = {"gateway_mib": 32, "engine_mib": 256}
"""What may be kept however long the run: by allocators, and in the engine by torch's kernels for each shape of a batch
that they have met."""
MAX_MIB_PER_1000_REQUESTS = 1.0

JSON = {"Content-Type": "application/json"}
# Short prompts, pieces of one long text, and one that is refused for its length.
WORDS = ("the", "river", "keeps", "its", "own", "slow", "time", "and", "nobody", "asks", "it", "to", "hurry")


@dataclass
class Rest:
    """The gateway at rest."""

    minutes: float
    requests: int
    gateway_mib: float
    engine_mib: float
    sockets: int
    threads: int
    tasks: int
    in_flight: int
    running: int
    waiting: int
    blocks: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m", help="what to serve (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=2.0, help="how long (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of what is asked and when clients leave")
    parser.epilog = "What stands after -- are flags of `proxima serve`."
    # argparse would take them for positional arguments, and there are none left after an option.
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options = parser.parse_args(sys.argv[1:end])
    return asyncio.run(soak(options.model, sys.argv[end + 1 :], options.minutes * 60, random.Random(options.seed)))


async def soak(model: str, flags: Sequence[str], duration_s: float, chance: random.Random) -> int:
    log = Path(tempfile.mkdtemp(prefix="proxima-soak-")) / "log"
    tell({"serving": model, "log": str(log)})
    async with gateway(model, flags, log) as (url, server):
        outcomes: Counter[str] = Counter()
        rests: list[Rest] = []
        began_s = time.monotonic()
        while time.monotonic() - began_s < duration_s or len(rests) < 4:
            await load(url, min(LOAD_S, max(duration_s / 8, 1.0)), chance, outcomes)
            rests.append(await rest(url, server, outcomes.total(), time.monotonic() - began_s))
            tell(asdict(rests[-1]))
    found = verdict(rests)
    tell({"outcomes": dict(outcomes), "grew": found})
    return 1 if found else 0


@contextlib.asynccontextmanager
async def gateway(model: str, flags: Sequence[str], log: Path) -> AsyncIterator[tuple[str, psutil.Process]]:
    """One that is ready, with its address; stopped when the body ends."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [Path(sys.executable).with_name("proxima"), "serve", model, "--port", str(port), *flags]
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output)
    url = f"http://127.0.0.1:{port}"
    try:
        async with aiohttp.ClientSession(url) as session:
            while process.returncode is None:
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get("/health/ready") as answer:
                        if answer.ok:
                            break
                await asyncio.sleep(0.5)
            else:
                sys.exit(f"soak: the gateway did not start; its log is {log}")
        yield url, psutil.Process(process.pid)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def load(url: str, duration_s: float, chance: random.Random, outcomes: Counter[str]) -> None:
    ends_s = time.monotonic() + duration_s

    async def work(seed: int) -> None:
        mine = random.Random(seed)
        # A connection of its own for each request, now and then, is what finds sockets that stay.
        while time.monotonic() < ends_s:
            connector = aiohttp.TCPConnector(force_close=mine.random() < 0.5)
            async with aiohttp.ClientSession(url, connector=connector, headers=JSON) as session:
                for _ in range(mine.randint(1, 5)):
                    outcomes[await ask(session, mine)] += 1

    await asyncio.gather(*(work(chance.randrange(2**32)) for _ in range(WORKERS)))


async def ask(session: aiohttp.ClientSession, chance: random.Random) -> str:
    """One request, and how it ended."""
    path, body = request(chance)
    patience_s = chance.choice([None, None, chance.uniform(0, 0.05), chance.uniform(0, 3)])
    try:
        async with asyncio.timeout(patience_s), session.post(path, data=body) as answer:
            async for _ in answer.content.iter_any():
                if chance.random() < 0.005:
                    return "left in the middle"
            return f"status {answer.status}"
    except TimeoutError:
        return "left"
    except aiohttp.ClientError as error:
        return type(error).__name__


def request(chance: random.Random) -> tuple[str, bytes]:
    if chance.random() < 0.05:
        return "/v1/completions", chance.choice([b"{", b'{"prompt": 1.5}', b'{"prompt": "x", "n": -1}', b"\xff"])
    text = " ".join(chance.choices(WORDS, k=chance.choice([3, 30, 300])))
    if chance.random() < 0.03:
        text *= 200
    asked: dict[str, Any] = {"max_tokens": chance.randint(1, MAX_OUTPUT_TOKENS), "stream": chance.random() < 0.7}
    if chance.random() < 0.3:
        asked |= {"ignore_eos": True, "seed": chance.randrange(100)}
    if chance.random() < 0.1:
        asked |= {"n": 3, "temperature": 1.0}
    if chance.random() < 0.5:
        return "/v1/completions", json.dumps({"prompt": text, **asked}).encode()
    return "/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": text}], **asked}).encode()


async def rest(url: str, server: psutil.Process, requests: int, passed_s: float) -> Rest:
    """The gateway once it has nothing to do; as it is, if it does not come to rest."""
    deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(force_close=True)) as session:
        while True:
            await asyncio.sleep(SETTLED_S)
            async with session.get("/metrics") as answer:
                values = metrics(await answer.text())
            state = {
                "in_flight": values["proxima_http_requests_in_flight"] - 1,  # the scrape itself
                "running": values["vllm:num_requests_running"],
                "waiting": values["vllm:num_requests_waiting"],
                "blocks": values.get("proxima_kv_blocks_used", 0),
            }
            if not any(state.values()) or time.monotonic() > deadline_s:
                break
    return Rest(
        minutes=round(passed_s / 60, 2),
        requests=requests,
        gateway_mib=mib(server),
        engine_mib=round(sum(mib(each) for each in server.children(recursive=True)), 1),
        sockets=len(server.net_connections()),
        threads=server.num_threads(),
        tasks=int(values["proxima_event_loop_tasks"]),
        **{name: int(value) for name, value in state.items()},
    )


def metrics(text: str) -> dict[str, float]:
    """Sums over the labels of each series."""
    sums: dict[str, float] = {}
    for name, value in re.findall(r"^([\w:]+)(?:\{.*\})? (\S+)$", text, re.MULTILINE):
        sums[name] = sums.get(name, 0.0) + float(value)
    return sums


def mib(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.NoSuchProcess):
        return round(process.memory_info().rss / 2**20, 1)
    return 0.0


def verdict(rests: Sequence[Rest]) -> dict[str, str]:
    """What grew, by name; empty when nothing did."""
    found: dict[str, str] = {}
    for name in ("in_flight", "running", "waiting", "blocks"):
        left = [getattr(each, name) for each in rests]
        if any(left):
            found[name] = f"left over at rest: {left}"
    # The first quarter fills caches and pools.
    settled = rests[len(rests) // 4 :]
    first, last = settled[: max(1, len(settled) // 3)], settled[-max(1, len(settled) // 3) :]
    for name in ("tasks", "sockets", "threads"):
        before, after = (max(getattr(each, name) for each in part) for part in (first, last))
        if after > before + (0 if name == "tasks" else 2):
            found[name] = f"{before} -> {after}"
    thousands = (last[-1].requests - first[0].requests) / 1000
    for name, noise_mib in NOISE_MIB.items():
        before, after = (statistics.median(getattr(each, name) for each in part) for part in (first, last))
        if after - before > noise_mib + MAX_MIB_PER_1000_REQUESTS * thousands:
            found[name] = f"{before} -> {after} MiB in {thousands * 1000:.0f} requests"
    return found


def tell(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    sys.exit(main())
