"""The arms of a comparison, written as text.

native,proxima                        two servers that are started, alike but for their scheduler
native+--max-num-seqs=64,native       an arm may carry flags of its own
vllm+--dtype=float32,proxima          vLLM's own server, with its own defaults
native,url:tgi=http://10.0.0.7:8080   a server that runs already
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from proxima_bench.target import root_of
from proxima_config.errors import UsageError

VLLM = "vllm"
"""Kind of arm: vLLM's own API server."""
KINDS = ("native", "proxima", "gang", VLLM)
"""What can be started: `proxima serve` with a scheduler, or vLLM's own server."""
_URL = "url:"
# A comma inside a flag's value is no end of an arm.
_BETWEEN_ARMS = re.compile(rf",(?=(?:{'|'.join(KINDS)})(?:[,+]|$)|{_URL})")
_NAMED_URL = re.compile(rf"{_URL}([\w.-]+)=(\S+)")


@dataclass(frozen=True)
class Arm:
    """One configuration; either ``kind`` or ``url`` is given."""

    name: str
    kind: str = ""
    flags: tuple[str, ...] = ()
    url: str = ""
    """Base URL of a server that runs already."""


def parse(text: str, fewest: int = 2) -> list[Arm]:
    """Arms, the first of which the others are compared with. Raises UsageError."""
    arms = [_arm(part) for part in _BETWEEN_ARMS.split(text)] if text else []
    names = [arm.name for arm in arms]
    if len(arms) < fewest:
        count = "two" if fewest == 2 else "one"
        raise UsageError(f"--arms needs at least {count}, such as native,proxima, not {text!r}")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"--arms: {twice[0]} stands there twice; arms need different names")
    return arms


def _arm(text: str) -> Arm:
    if text.startswith(_URL):
        found = _NAMED_URL.fullmatch(text)
        if not found:
            raise UsageError(f"--arms: {text} must look like url:NAME=http://host:port")
        if "+--" in text:
            raise UsageError(f"--arms: {text} runs already and takes no flags")
        return Arm(found[1], url=root_of(found[2], f"--arms: url:{found[1]}"))
    kind, *flags = re.split(r"\+(?=--)", text)
    if kind not in KINDS or "" in flags:
        raise UsageError(
            f"--arms: {text} is no arm; write {', '.join(KINDS)}, one of these with flags such as "
            "native+--max-num-seqs=64, or url:NAME=http://host:port"
        )
    return Arm(text, kind, tuple(flags))
