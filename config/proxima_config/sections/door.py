"""Settings of who is let in, how much, and for how long."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from proxima_config.api_keys import hash_keys
from proxima_config.sections.section import Section


class AuthSettings(Section):
    """Who may ask. Without keys everybody may, so bind an address that only friends reach."""

    api_keys_file: str = Field(
        default="",
        description="YAML file of API keys, stored as SHA-256, with the limits of each: see docs/admission.md. It is "
        "read again when it changes. Empty for none.",
    )
    api_keys: Annotated[str, AfterValidator(hash_keys)] = Field(
        default="",
        description="API keys without limits, as NAME=KEY pairs separated by commas or spaces; KEY may be "
        "sha256:HASH. Hashed as soon as they are read. On a command line other users of the machine can see them: "
        "use the environment.",
    )


class DoorSettings(Section):
    """How much is let in, and in which order while there is more than the engine takes."""

    max_queue_requests: int = Field(
        default=1024,
        ge=1,
        le=1_000_000,
        description="Requests that may wait; one more is refused with 429 queue_full. Those that are being computed "
        "do not count, nor do less urgent ones.",
    )
    max_queue_tokens: int = Field(
        default=2_000_000,
        ge=1,
        description="Prompt tokens of all that wait together, estimated from the length of the text; what is beyond "
        "is refused with 429 queue_full. One request alone is never too long for it.",
    )
    engine_backlog: int = Field(
        default=64,
        ge=1,
        le=1_000_000,
        description="Requests that may wait inside the engine, for the scheduler to choose from. While there are API "
        "keys, those beyond wait at the door, where keys take turns by weight.",
    )
    refuse_early: bool = Field(
        default=True,
        description="Refuse a request at once, with 429 queue_full, when the forecast says that it would miss its "
        "deadline, or most with such a deadline miss it. Off, it is let in, and ended at its deadline.",
    )
    long_prompt_tokens: int = Field(
        default=8192,
        ge=0,
        description="Prompts estimated at this many tokens or more are scheduled in the class `long`, which may hold "
        "only a part of the KV pool while others wait. 0 for never.",
    )


class DeadlineSettings(Section):
    """When a request is given up, counted from its arrival; 0 for never. A key may have its own, a request a shorter
    total (`x-request-timeout-ms`, or `timeout` in seconds in the body)."""

    queue_timeout_s: float = Field(
        default=600.0,
        ge=0,
        description="Longest wait for the computation to start, in seconds. The default is the time after which "
        "OpenAI's clients hang up. A request whose forecast wait is longer is refused at once.",
    )
    first_token_timeout_s: float = Field(
        default=0.0, ge=0, description="Longest wait for the first token, in seconds; the scheduler plans with it."
    )
    request_timeout_s: float = Field(
        default=0.0, ge=0, description="Longest time for the whole answer, in seconds; the scheduler plans with it."
    )
