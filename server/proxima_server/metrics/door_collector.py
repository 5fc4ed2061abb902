"""What waits at the door and what it refused, read when Prometheus asks."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client.registry import Collector

from proxima_config.hints import RequestClass
from proxima_config.metrics import door as catalogue
from proxima_server.door.books import Entry
from proxima_server.door.deadlines import Deadline
from proxima_server.door.door import Door
from proxima_server.metrics.families import Family, family


class DoorCollector(Collector):
    def __init__(self, door: Door) -> None:
        self._door = door

    def collect(self) -> Iterator[Family]:
        door, now_s = self._door, time.monotonic()
        waiting: dict[RequestClass, list[Entry]] = {each: [] for each in RequestClass}
        for visit in door.turns.waiting():
            waiting[visit.entry.request_class].append(visit.entry)
        yield family(
            catalogue.DOOR_WAITING,
            [((name,), sum(entry.sequences for entry in entries)) for name, entries in waiting.items()],
        )
        yield family(
            catalogue.DOOR_WAITING_TOKENS,
            [((name,), sum(entry.prompt_tokens for entry in entries)) for name, entries in waiting.items()],
        )
        yield family(
            catalogue.DOOR_OLDEST_WAIT,
            [
                ((name,), max((now_s - entry.waiter.arrived_s for entry in entries), default=0))
                for name, entries in waiting.items()
            ],
        )
        yield family(catalogue.REJECTIONS, [((why,), count) for why, count in door.refusals.counts.items()])
        yield family(catalogue.DEADLINES_EXPIRED, [((which,), door.expired[which]) for which in Deadline])
        yield family(catalogue.API_KEYS, [((), len(door.keys.ring))])
        yield family(catalogue.API_KEYS_RELOADS_FAILED, [((), door.keys.reloads_failed)])
