"""Load a gateway for minutes or hours with requests that end in every way, and see that nothing of them stays.

    make soak MINUTES=2                                          # the embedded model
    .venv/bin/python scripts/soak.py --minutes 480 MODEL -- --scheduler native

Load and rest alternate. In each rest nothing may be left: no KV block, no request, no task, no socket. Memory of the
gateway and of the engine is compared between the rests after the first half, when caches have filled, and the end:
what is allocated in each process (`soak_probe/`), which a leak makes grow and nothing else, and, after what is free was
given back, the size of the processes, which holds the gaps of the heap as well.
Prints one line of JSON for each rest and one with the verdict; exit code 1 says that something grew.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import psutil

WORKERS = 32
LOAD_S = 15.0
SETTLE_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 10.0
PROBE = Path(__file__).parent / "soak_probe"
SETTLED_S = 1.0
"""Snapshots of the scheduler and closing of sockets are a little late."""
MAX_OUTPUT_TOKENS = 200

# What may be kept however long the run, and for each thousand requests. Caches fill late; in the size of the engine are
# also the gaps in its heap, which grow with each shape of a batch that torch's kernels have met.
KEPT = {
    "gateway_malloc_mib": (8, 0.25),
    "engine_malloc_mib": (64, 0.25),
    "gateway_blocks": (20_000, 500),
    "engine_blocks": (20_000, 500),
    "gateway_mib": (32, 1.0),
    "engine_mib": (256, 1.0),
}

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
    gateway_malloc_mib: float
    """Allocated by malloc."""
    engine_malloc_mib: float
    gateway_blocks: int
    """Allocated by Python."""
    engine_blocks: int
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
    # Ended by others, it leaves no gateway behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return asyncio.run(soak(options.model, sys.argv[end + 1 :], options.minutes * 60, random.Random(options.seed)))


async def soak(model: str, flags: Sequence[str], duration_s: float, chance: random.Random) -> int:
    folder = Path(tempfile.mkdtemp(prefix="proxima-soak-"))
    log = folder / "log"
    tell({"serving": model, "log": str(log)})
    probe = Probe(folder)
    async with gateway(model, flags, log, probe.environment()) as (url, server):
        outcomes: Counter[str] = Counter()
        rests: list[Rest] = []
        began_s = time.monotonic()
        while time.monotonic() - began_s < duration_s or len(rests) < 4:
            await load(url, min(LOAD_S, max(duration_s / 8, 1.0)), chance, outcomes)
            rests.append(await rest(url, server, probe, outcomes.total(), time.monotonic() - began_s))
            tell(asdict(rests[-1]))
    found = verdict(rests)
    tell({"outcomes": dict(outcomes), "grew": found})
    return 1 if found else 0


@contextlib.asynccontextmanager
async def gateway(
    model: str, flags: Sequence[str], log: Path, environment: dict[str, str]
) -> AsyncIterator[tuple[str, psutil.Process]]:
    """One that is ready, with its address; stopped when the body ends."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [Path(sys.executable).with_name("proxima"), "serve", model, "--port", str(port), *flags]
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output, env=environment)
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


class Probe:
    """Asks the processes of the gateway how much is allocated in each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._asked = 0

    def environment(self) -> dict[str, str]:
        """For a process which is to be asked, and all that it starts."""
        path = [str(PROBE), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {**os.environ, "PROXIMA_SOAK_PROBE": str(self._folder), "PYTHONPATH": os.pathsep.join(path)}

    async def ask(self, processes: Sequence[psutil.Process]) -> Figures:
        """Of all of them together. Those that are no Python (any more) have none."""
        self._asked += 1
        new = self._folder / "ask.new"
        new.write_text(str(self._asked))
        new.replace(self._folder / "ask")
        ends_s = time.monotonic() + ANSWER_TIMEOUT_S
        found: list[Figures] = []
        waiting = list(processes)
        while waiting and time.monotonic() < ends_s:
            await asyncio.sleep(0.1)
            told = {each: self._read(each.pid) for each in waiting}
            found += filter(None, told.values())
            waiting = [each for each, figures in told.items() if figures is None and each.is_running()]
        return Figures(round(sum(each.malloc_mib for each in found), 1), sum(each.blocks for each in found))

    def _read(self, pid: int) -> Figures | None:
        with contextlib.suppress(FileNotFoundError):
            told = json.loads((self._folder / f"{pid}.json").read_text())
            if told["asked"] == str(self._asked):
                return Figures(told["malloc_bytes"] / 2**20, told["blocks"])
        return None


class Figures(NamedTuple):
    malloc_mib: float
    blocks: int


async def rest(url: str, server: psutil.Process, probe: Probe, requests: int, passed_s: float) -> Rest:
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
    engine = server.children(recursive=True)
    gateway_figures, engine_figures = await probe.ask([server]), await probe.ask(engine)
    return Rest(
        minutes=round(passed_s / 60, 2),
        requests=requests,
        gateway_mib=mib(server),
        engine_mib=round(sum(mib(each) for each in engine), 1),
        gateway_malloc_mib=gateway_figures.malloc_mib,
        engine_malloc_mib=engine_figures.malloc_mib,
        gateway_blocks=gateway_figures.blocks,
        engine_blocks=engine_figures.blocks,
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
    # The first half fills caches and pools.
    settled = rests[len(rests) // 2 :]
    first, last = settled[: max(1, len(settled) // 3)], settled[-max(1, len(settled) // 3) :]
    for name in ("tasks", "sockets", "threads"):
        before, after = (max(getattr(each, name) for each in part) for part in (first, last))
        if after > before + (0 if name == "tasks" else 2):
            found[name] = f"{before} -> {after}"
    thousands = (last[-1].requests - first[0].requests) / 1000
    for name, (noise, each_thousand) in KEPT.items():
        before, after = (statistics.median(getattr(each, name) for each in part) for part in (first, last))
        if not before:
            found[name] = "no process told it"
        elif after - before > noise + each_thousand * thousands:
            found[name] = f"{before} -> {after} in {thousands * 1000:.0f} requests"
    return found


def tell(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    sys.exit(main())
