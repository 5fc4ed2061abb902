"""Distributions of token counts, written as one short text.

128                     always 128
32-512                  each whole number from 32 to 512 equally likely
64|512                  one of the values, equally likely
lognormal(64, 1.0)      median 64, sigma 1.0: most are short, some very long
lognormal(64, 1.0, 900) the same, cut at 900
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable

Draw = Callable[[random.Random], int]

_NUMBER = r"\d+(?:\.\d+)?"
_LOGNORMAL = re.compile(rf"lognormal\(\s*({_NUMBER})\s*,\s*({_NUMBER})\s*(?:,\s*(\d+)\s*)?\)")
_RANGE = re.compile(r"(\d+)-(\d+)")
_CHOICE = re.compile(r"\d+(?:\|\d+)*")


def parse(text: str) -> Draw:
    """The distribution that ``text`` names; its draws are at least 1. Raises ValueError that says what is possible."""
    text = text.strip()
    if found := _LOGNORMAL.fullmatch(text):
        median, sigma, most = float(found[1]), float(found[2]), int(found[3]) if found[3] else None
        if median >= 1 and most != 0:
            return _lognormal(median, sigma, most)
    elif found := _RANGE.fullmatch(text):
        low, high = int(found[1]), int(found[2])
        if 1 <= low <= high:
            return lambda rng: rng.randint(low, high)
    elif _CHOICE.fullmatch(text):
        values = [int(value) for value in text.split("|")]
        if min(values) >= 1:
            return lambda rng: rng.choice(values)
    raise ValueError(f"{text!r} is no token count; write 128, 32-512, 64|512 or lognormal(64, 1.0, 900), from 1 up")


def _lognormal(median: float, sigma: float, most: int | None) -> Draw:
    def draw(rng: random.Random) -> int:
        value = max(1, round(rng.lognormvariate(math.log(median), sigma)))
        return value if most is None else min(value, most)

    return draw
