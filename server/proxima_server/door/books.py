"""Who is at the door and who is in the engine, and what follows from that: is there room, and how long is the wait.

Counted here rather than read from the scheduler, whose newest snapshot does not know the last tenth of a second. What
only the scheduler knows comes in as :class:`EngineView`. One request counts as its sequences.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from proxima_config.hints import RequestClass
from proxima_config.settings import DoorSettings
from proxima_server.door.classes import LAST_LEVEL
from proxima_server.door.drain_rate import DrainRate
from proxima_server.door.fair_queue import Waiter

Place = Literal["door", "engine"]


@dataclass(frozen=True)
class EngineView:
    """The newest that is known about the engine, of all ranks together."""

    running: int
    """Sequences being computed."""
    waiting: int | None = None
    """Sequences that wait for it; None if it does not tell."""
    estimated_start_s: Mapping[str, float] = field(default_factory=dict)
    """By class, when a request that had arrived at the time of the snapshot would start; the best of all ranks."""


@dataclass(eq=False)
class Entry:
    """One request on its way through the door."""

    request_class: RequestClass
    sequences: int
    prompt_tokens: int
    waiter: Waiter
    place: Place | None = None
    counted_level: int = 0
    """The level under which it stands in the books; the waiter's may have risen since."""


@dataclass
class Load:
    sequences: float = 0
    tokens: float = 0
    """Of prompts, estimated."""
    cost: float = 0
    """Tokens of prompts and expected answers."""

    def add(self, entry: Entry, sign: int = 1) -> None:
        self.sequences += sign * entry.sequences
        self.tokens += sign * entry.prompt_tokens
        self.cost += sign * entry.waiter.cost

    def __add__(self, other: Load) -> Load:
        return Load(self.sequences + other.sequences, self.tokens + other.tokens, self.cost + other.cost)

    def __mul__(self, share: float) -> Load:
        return Load(self.sequences * share, self.tokens * share, self.cost * share)


@dataclass
class _Counts:
    levels: list[Load] = field(default_factory=lambda: [Load() for _ in range(LAST_LEVEL + 1)])
    tenants: defaultdict[str, Load] = field(default_factory=lambda: defaultdict(Load))

    def up_to(self, level: int) -> Load:
        return _sum(self.levels[: level + 1])

    def add(self, entry: Entry, sign: int) -> None:
        self.levels[entry.counted_level].add(entry, sign)
        self.tenants[entry.waiter.tenant].add(entry, sign)


class Books:
    def __init__(self, settings: DoorSettings) -> None:
        self._bounds = Load(settings.max_queue_requests, settings.max_queue_tokens)
        self._backlog = settings.engine_backlog
        self._counts: dict[Place, _Counts] = {"door": _Counts(), "engine": _Counts()}
        self._weights: dict[str, float] = {}
        self.drain = DrainRate()

    # -- movements -------------------------------------------------------------------------------------------------

    def move(self, entry: Entry, place: Place | None, *, served: bool = True, more_cost: float = 0) -> None:
        """To the door, into the engine, or out, where it cost `more_cost` more than was expected. Who leaves the engine
        without having been `served` shows nothing of how fast it is."""
        if entry.place is not None:
            self._counts[entry.place].add(entry, -1)
        if entry.place == "engine" and place is None and served:
            self.drain.depart(entry.sequences, entry.waiter.cost + more_cost)
        entry.place, entry.counted_level = place, entry.waiter.level
        if place is not None:
            self._weights[entry.waiter.tenant] = entry.waiter.weight
            self._counts[place].add(entry, 1)

    def pass_time(self, now_s: float, view: EngineView) -> None:
        """Before each movement: time up to now was busy or not."""
        self.drain.pass_time(now_s, busy=self.waiting(LAST_LEVEL, view).sequences > 0)

    # -- questions -------------------------------------------------------------------------------------------------

    def waiting(self, level: int, view: EngineView) -> Load:
        """What waits, at the door or in the engine, of that level and of more urgent ones."""
        return self._counts["door"].up_to(level) + self._waiting_in_engine(level, view)

    def takes_more(self, level: int, view: EngineView) -> bool:
        """Whether so few of that level wait in the engine that the scheduler should get one more to choose from."""
        return self._counts["engine"].up_to(level).sequences < view.running + self._backlog

    def exceeded_bound(self, entry: Entry, view: EngineView) -> Literal["requests", "tokens"] | None:
        """Which bound of the queue `entry` would exceed.

        Others may fill the queue, but not the share of it that a tenant has by its weight.
        """
        waiting = self.waiting(entry.waiter.level, view)
        # What an idle engine starts at once cannot be too much for the queue.
        if not waiting.sequences:
            return None
        share = self._share(entry.waiter)
        own, allowed = self._held(entry.waiter.tenant, view), self._bounds * share
        for bound, asked in (("requests", entry.sequences), ("tokens", entry.prompt_tokens)):
            name: Literal["sequences", "tokens"] = "sequences" if bound == "requests" else "tokens"
            full = getattr(waiting, name) + asked > getattr(self._bounds, name)
            if full and (share == 1 or getattr(own, name) + asked > getattr(allowed, name)):
                return "requests" if bound == "requests" else "tokens"
        return None

    def on_their_way(self, level: int) -> int:
        """Sequences that were let in and have not left, of that level and of more urgent ones."""
        return int(sum(counts.up_to(level).sequences for counts in self._counts.values()))

    def leaves_room(self, entry: Entry, limit: float) -> bool:
        """Whether no more than `limit` are on their way with `entry`, or its tenant has less than its share of them."""
        if self.on_their_way(entry.waiter.level) + entry.sequences <= max(limit, entry.sequences):
            return True
        share = self._share(entry.waiter)
        own = sum(counts.tenants[entry.waiter.tenant].sequences for counts in self._counts.values())
        return share < 1 and own + entry.sequences <= limit * share

    def forecast_start_s(self, entry: Entry, at_door: Load, view: EngineView) -> float | None:
        """When `entry` would start, at the earliest that can be argued for, if `at_door` are those whose turns come
        before its own; None if nothing is known.

        The smaller of two: all who go before it at the fastest rate that the measurements allow, and the scheduler's
        own estimate plus those at the door, whom it does not know of.
        """
        if not self.waiting(entry.waiter.level, view).sequences:
            return 0.0
        ahead = self._before_in_engine(entry.waiter, view) + at_door
        measured_s = self.drain.earliest_s(ahead.sequences, ahead.cost)
        told_s = view.estimated_start_s.get(entry.request_class, view.estimated_start_s.get(RequestClass.DEFAULT))
        door_s = self.drain.earliest_s(at_door.sequences, at_door.cost)
        if measured_s is None or door_s is None or told_s is None:
            return measured_s
        return min(measured_s, told_s + door_s)

    def drained_s(self, fraction: float, level: int, view: EngineView) -> float:
        """Seconds until that part of what waits has started; 1 while the rate is not known."""
        rate = self.drain.per_s()
        return 1.0 if rate is None else fraction * self.waiting(level, view).sequences / rate

    def next_departure_s(self, tenant: str) -> float:
        """Seconds until a request of the tenant ends, on average; 1 while the rate is not known."""
        rate, own = self.drain.per_s(), self._counts["engine"].tenants[tenant].sequences
        return 1.0 if rate is None or not own else self._counts["engine"].up_to(LAST_LEVEL).sequences / (rate * own)

    def _share(self, waiter: Waiter) -> float:
        """Of the tenant by weight, among all who have requests here and itself."""
        active = {name for counts in self._counts.values() for name, load in counts.tenants.items() if load.sequences}
        others = sum(self._weights[name] for name in active if name != waiter.tenant)
        return waiter.weight / (waiter.weight + others)

    def _held(self, tenant: str, view: EngineView) -> Load:
        """What waits of the tenant; in the engine it is taken to wait as much as others."""
        share = self._waiting_share(self._counts["engine"].up_to(LAST_LEVEL).sequences, view)
        return self._counts["door"].tenants[tenant] + self._counts["engine"].tenants[tenant] * share

    def _before_in_engine(self, waiter: Waiter, view: EngineView) -> Load:
        """What waits in the engine and is computed before `waiter`: the more urgent levels, and of its own what its
        tenant has there with as much of others as their weights are worth. The scheduler keeps no turns, but nobody
        waits there for all whom another tenant has sent before."""
        urgent, level = self._waiting_in_engine(waiter.level - 1, view), self._waiting_in_engine(waiter.level, view)
        everybody = self._counts["engine"].up_to(LAST_LEVEL).sequences
        own = self._counts["engine"].tenants[waiter.tenant] * self._waiting_share(everybody, view)
        fair = own * (1 / self._share(waiter))
        return max(urgent, min(level, fair, key=_sequences), key=_sequences)

    def _waiting_in_engine(self, level: int, view: EngineView) -> Load:
        load = self._counts["engine"].up_to(level)
        return load * self._waiting_share(load.sequences, view)

    @staticmethod
    def _waiting_share(in_engine: float, view: EngineView) -> float:
        """The part of those in the engine that waits there; they are taken to be as long as those that run."""
        return max(0.0, in_engine - view.running) / in_engine if in_engine else 0.0


def _sequences(load: Load) -> float:
    return load.sequences


def _sum(loads: Iterable[Load]) -> Load:
    return sum(loads, Load())
