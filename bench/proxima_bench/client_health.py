"""How busy the client itself is: a client that cannot keep up measures itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from proxima_bench.exchange import Exchange
from proxima_bench.figures import distribution

CPU_SHARE_LIMIT = 0.8
"""Share of one core above which figures are doubtful: the client reads all streams in one thread."""
LAG_LIMIT_S = 0.05
"""99th percentile of event-loop lag above which figures are doubtful."""
_INTERVAL_S = 0.0625


@dataclass
class ClientHealth:
    """CPU time of this process and lag of its event loop during one measurement."""

    cpu_s: float = 0.0
    wall_s: float = 0.0
    lags_s: list[float] = field(default_factory=list)

    def report(self, exchanges: Sequence[Exchange]) -> dict[str, Any]:
        late_s = [each.sent_s - each.due_s for each in exchanges if each.due_s is not None]
        return {
            "cpu_share": self.cpu_s / self.wall_s if self.wall_s else 0.0,
            "lag_s": distribution(self.lags_s),
            "sent_late_s": distribution(late_s),
        }


@asynccontextmanager
async def watched() -> AsyncIterator[ClientHealth]:
    """Watches the client while the body runs; the values are complete when it has ended."""
    health = ClientHealth()
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    watcher = asyncio.create_task(_measure_lag(health.lags_s))
    try:
        yield health
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
        health.cpu_s, health.wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s


def bottleneck(client: dict[str, Any]) -> str | None:
    """Why the client's own figures should not be believed, or None."""
    lag_s = client["lag_s"]["p99"] or 0.0
    if client["cpu_share"] > CPU_SHARE_LIMIT:
        return f"the client used {client['cpu_share']:.0%} of a core"
    if lag_s > LAG_LIMIT_S:
        return f"the client's event loop lagged {lag_s * 1000:.0f} ms (p99)"
    return None


async def _measure_lag(lags_s: list[float]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + _INTERVAL_S
        await asyncio.sleep(_INTERVAL_S)
        lags_s.append(max(0.0, loop.time() - due_s))
