"""What it costs the gateway that people look: share of a core for so many viewers of the live view.

    .venv/bin/python scripts/measure_feed.py --viewers 10 --requests 300

The real application over a scripted engine with so many requests on their way; viewers are another process. Without
viewers first, then with them; the difference is what they cost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests" / "support"))

from fake_gateway import FakeGateway, fake_gateway, snapshot
from request_rows import state

from proxima_engine.telemetry import Phase
from proxima_server.observability.record import RequestRecord

SETTLING_S = 2.0
VIEWER = """
import sys, threading, urllib.request
def look():
    request = urllib.request.Request(sys.argv[1] + "/debug/live", headers={"Accept": "text/event-stream"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for line in opener.open(request):
        pass
for _ in range(int(sys.argv[2])):
    threading.Thread(target=look, daemon=True).start()
sys.stdin.read()
"""


def crowd(gateway: FakeGateway, count: int) -> None:
    states = []
    for number in range(count):
        record = RequestRecord(gateway.gateway.request_metrics, "POST", "/v1/chat/completions")
        record.request_id, record.sent_s = f"req_{number:032x}", record.arrived_s
        record.engine_ids.append(f"chatcmpl-{number}")
        gateway.gateway.active_requests.add(record)
        states.append(state(f"chatcmpl-{number}-0123abcd", Phase.DECODE, blocks=9, output_tokens=40))
    gateway.runtime.snapshot_receiver.latest = {0: snapshot(running=count)}
    gateway.runtime.snapshot_receiver.requests[0] = states


async def share_of_core(seconds: float) -> float:
    await asyncio.sleep(SETTLING_S)
    begun_s, used_s = time.monotonic(), time.process_time()
    await asyncio.sleep(seconds)
    return (time.process_time() - used_s) / (time.monotonic() - begun_s)


async def measure(viewers: int, requests: int, seconds: float) -> dict[str, float | int]:
    async with fake_gateway() as gateway:
        await gateway.ready()
        crowd(gateway, requests)
        alone = await share_of_core(seconds)
        host, port = gateway.address
        looking = await asyncio.create_subprocess_exec(
            sys.executable, "-c", VIEWER, f"http://{host}:{port}", str(viewers), stdin=subprocess.PIPE
        )
        try:
            watched = await share_of_core(seconds)
        finally:
            looking.terminate()
            await looking.wait()
        gateway.gateway.active_requests.clear()
    return {
        "viewers": viewers,
        "requests": requests,
        "seconds": seconds,
        "share_of_core_without": round(alone, 5),
        "share_of_core_with": round(watched, 5),
        "share_of_core": round(watched - alone, 5),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--viewers", type=int, default=10)
    parser.add_argument("--requests", type=int, default=300, help="on their way (300 are shown at most)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each of the two measurements")
    options = parser.parse_args()
    print(json.dumps(asyncio.run(measure(options.viewers, options.requests, options.seconds))))


if __name__ == "__main__":
    main()
