"""The arms by name, known before vLLM is imported: that takes a quarter of a minute, and a typing error needs none."""

from __future__ import annotations

from proxima_config.errors import UsageError
from proxima_config.nearest import nearest

ARM_NAMES = (
    "native",
    "native-watermark",
    "gang",
    "sglang-ratio",
    "past-future",
    "past-future-oracle",
    "hrrn",
    "deadline-watermark",
    "sjf-oracle",
    "proxima",
    "proxima-swap",
)


def parse(flag: str, text: str) -> tuple[str, ...]:
    """Names of arms with commas between them, or all. Raises UsageError with what ``flag`` may be."""
    if text == "all":
        return ARM_NAMES
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        check(flag, name)
    if len(set(names)) < len(names):
        raise UsageError(f"{flag}: {text} names one twice")
    return names


def check(flag: str, name: str) -> None:
    """Raises UsageError for a name that no arm has."""
    if name not in ARM_NAMES:
        near = nearest(name, ARM_NAMES)
        hint = f"; did you mean {near}?" if near else ""
        raise UsageError(f"{flag}: no arm is called {name!r}{hint} (there are {', '.join(ARM_NAMES)})")
