"""Whether KV of requests that yield is kept."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from proxima_config.sections.section import CliFlag, Section


class SwapSettings(Section):
    """What becomes of the KV of a request that gives up its blocks."""

    enabled: Annotated[bool, CliFlag("--swap")] = Field(
        default=False,
        description="Copy it to host memory and back when the request resumes, instead of computing it again. Needs "
        "scheduler.kind proxima; kv_transfer_config or kv_offloading_size of your own switches it off.",
    )
    prefixes: Annotated[bool, CliFlag("--swap-prefixes")] = Field(
        default=True,
        description="Keep there, too, what the prefix cache gives up, and load it for later requests with the same "
        "beginning, such as the next turn of a chat. Where room is short requests that yield go first, and it is not "
        "done where copies take longer than computing. Needs enabled, and prefix caching.",
    )
    host_bytes: Annotated[int, CliFlag("--swap-host-bytes")] = Field(
        default=0,
        ge=0,
        description="Host memory for it, of all ranks of this gateway together. When it is full, requests that yield "
        "compute again. 0 for 4 GiB, or a quarter of the memory that is free at start-up if that is less.",
    )
