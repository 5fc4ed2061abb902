"""What one key may use: requests and tokens a minute as token buckets, and requests at once.

A bucket holds one minute's worth and refills steadily. Tokens are reserved when a request comes, as its estimated
prompt plus the output it declares, and settled when it ends; a request that declares nothing may leave a debt, which
the next ones wait for.
"""

from __future__ import annotations

from dataclasses import dataclass

from proxima_config.api_keys import ApiKey

_MINUTE_S = 60.0


@dataclass
class Bucket:
    """Up to `capacity` units, refilled within a minute. Time comes in as an argument, in seconds."""

    capacity: int
    _level: float
    _at_s: float

    @classmethod
    def full(cls, capacity: int, now_s: float) -> Bucket:
        return cls(capacity, float(capacity), now_s)

    def level(self, now_s: float) -> float:
        """Units left; negative after a debt."""
        refilled = (now_s - self._at_s) * self.capacity / _MINUTE_S
        return min(float(self.capacity), self._level + max(0.0, refilled))

    def take(self, now_s: float, units: float) -> None:
        """May leave a debt. Negative units give back."""
        self._level = min(float(self.capacity), self.level(now_s) - units)
        self._at_s = max(now_s, self._at_s)

    def wait_s(self, now_s: float, units: float) -> float:
        """Seconds until that many units are there; infinite if they never are."""
        if units > self.capacity:
            return float("inf")
        return max(0.0, units - self.level(now_s)) * _MINUTE_S / self.capacity

    def reset_s(self, now_s: float) -> float:
        """Seconds until it is full."""
        return self.wait_s(now_s, self.capacity)


@dataclass(frozen=True)
class Exceeded:
    """Why a key may not have one more request now."""

    limit: str
    """As the key's entry calls it, without max_: requests_per_min, tokens_per_min or concurrent."""
    allowed: int
    asked: int
    wait_s: float | None
    """Until it may; infinite for never, None for when one of its requests ends."""


class Usage:
    """What one key uses."""

    def __init__(self, key: ApiKey, now_s: float) -> None:
        self.running = 0
        self._adopt(key, now_s)

    def _adopt(self, key: ApiKey, now_s: float) -> None:
        self.key = key
        self._buckets = {
            name: Bucket.full(limit, now_s)
            for name, limit in (("requests", key.requests_per_min), ("tokens", key.tokens_per_min))
            if limit is not None
        }

    def follow(self, key: ApiKey, now_s: float) -> None:
        """Take on the limits of a changed entry; what runs goes on to count."""
        if key != self.key:
            self._adopt(key, now_s)

    def enter(self, now_s: float, tokens: int) -> Exceeded | None:
        """Count one more request that reserves `tokens`, unless a limit forbids it: then nothing changes."""
        key = self.key
        if key.max_concurrent is not None and self.running >= key.max_concurrent:
            return Exceeded("concurrent", key.max_concurrent, self.running + 1, None)
        asked = {"requests": 1, "tokens": tokens}
        for name, bucket in self._buckets.items():
            wait_s = bucket.wait_s(now_s, asked[name])
            if wait_s > 0:
                return Exceeded(f"{name}_per_min", bucket.capacity, asked[name], wait_s)
        for name, bucket in self._buckets.items():
            bucket.take(now_s, asked[name])
        self.running += 1
        return None

    def settle(self, now_s: float, reserved: int, used: int) -> None:
        """A request has ended that used `used` of the `reserved` tokens."""
        self.running -= 1
        if "tokens" in self._buckets:
            self._buckets["tokens"].take(now_s, used - reserved)

    def take_back(self, now_s: float, reserved: int) -> None:
        """A request that entered was refused after all."""
        self.settle(now_s, reserved, 0)
        if "requests" in self._buckets:
            self._buckets["requests"].take(now_s, -1)

    def headers(self, now_s: float) -> dict[str, str]:
        """`x-ratelimit-*` as OpenAI sends them; none without limits."""
        found: dict[str, str] = {}
        for name, bucket in self._buckets.items():
            found[f"x-ratelimit-limit-{name}"] = str(bucket.capacity)
            found[f"x-ratelimit-remaining-{name}"] = str(max(0, int(bucket.level(now_s))))
            found[f"x-ratelimit-reset-{name}"] = duration(bucket.reset_s(now_s))
        return found


def duration(seconds: float) -> str:
    """As OpenAI writes durations in headers: 120ms, 1.5s, 6m0s."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(seconds, _MINUTE_S)
    shown = f"{rest:.3f}".rstrip("0").rstrip(".")
    return f"{int(minutes)}m{shown}s" if minutes else f"{shown}s"
