"""Output throughput of `proxima serve` with its defaults against vLLM's own server with its defaults.

    .venv/bin/python scripts/measure_throughput.py --rounds 3 --json throughput.json

Each round starts the arms one after the other (A B C, A B C, ...), each alone on the machine, sends one warm-up wave
and then measures one: 64 streams at once, 64 tokens each, the same prompts for every arm. The ratio is taken round
by round, so that a machine that speeds up or slows down meanwhile does not decide the result.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from openai import APIConnectionError, AsyncOpenAI, InternalServerError

STREAMS = 64
TOKENS = 64
MODEL = "smollm2-135m"
PYTHON = sys.executable
PROXIMA = str(Path(PYTHON).with_name("proxima"))
VLLM = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager", "--served-model-name", MODEL]


def arms(model_folder: str) -> dict[str, list[str]]:
    """Commands without the port. `vllm-float32` separates what the data type gains from what the rest does."""
    return {
        "proxima": [PROXIMA, "serve", MODEL],
        "vllm": [*VLLM, "--model", model_folder],
        "vllm-float32": [*VLLM, "--model", model_folder, "--dtype", "float32"],
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def until_ready(client: AsyncOpenAI, server: subprocess.Popen[bytes]) -> None:
    while True:
        if server.poll() is not None:
            sys.exit(f"the server ended with exit code {server.returncode} before it was ready")
        try:
            await wave(client, streams=1, tokens=1)
        except (APIConnectionError, InternalServerError):
            await asyncio.sleep(1)
        else:
            return


async def wave(client: AsyncOpenAI, streams: int, tokens: int) -> float:
    """Send one wave; returns output tokens per second of the whole wave."""

    async def one(index: int) -> int:
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": f"Tell me story number {index}."}],
            max_tokens=tokens,
            temperature=0.7,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        return sum([chunk.usage.completion_tokens async for chunk in stream if chunk.usage])

    started_s = time.perf_counter()
    produced = sum(await asyncio.gather(*(one(index) for index in range(streams))))
    if produced != streams * tokens:
        sys.exit(f"asked for {streams * tokens} tokens, got {produced}")
    return produced / (time.perf_counter() - started_s)


async def measure(command: list[str]) -> float:
    port = free_port()
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen([*command, "--port", str(port)], stdout=log, stderr=log, start_new_session=True)
        client = AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=1800)
        try:
            await until_ready(client, server)
            await wave(client, STREAMS, 4)
            return await wave(client, STREAMS, TOKENS)
        finally:
            await client.close()
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(timeout=120)


def machine() -> str:
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    flags = Path("/proc/cpuinfo").read_text()
    return f"{cpu}, {os.cpu_count()} cores, {'AVX-512' if 'avx512f' in flags else 'AVX2, no AVX-512'}"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--arms", default="proxima,vllm,vllm-float32", help="comma-separated; the first is compared")
    parser.add_argument("--json", type=Path, help="also write the result here")
    options = parser.parse_args()
    folder = subprocess.run(
        [PROXIMA, "model", "path", MODEL], capture_output=True, text=True, check=True
    ).stdout.strip()
    names = options.arms.split(",")
    results: dict[str, list[float]] = {name: [] for name in names}
    for number in range(1, options.rounds + 1):
        for name in names:
            results[name].append(await measure(arms(folder)[name]))
            print(f"round {number} {name}: {results[name][-1]:.0f} tokens/s", flush=True)
    ratios = {
        name: [ours / theirs for ours, theirs in zip(results[names[0]], results[name], strict=True)]
        for name in names[1:]
    }
    print(f"\n{machine()}; {STREAMS} streams x {TOKENS} tokens; {options.rounds} interleaved rounds")
    for name, values in ratios.items():
        spread = f"{min(values):.2f} to {max(values):.2f}"
        print(f"{names[0]} / {name}: {statistics.median(values):.2f} (median of rounds, {spread})")
    if options.json:
        report = {"machine": machine(), "tokens_per_s": results, "ratios": ratios}
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main())
