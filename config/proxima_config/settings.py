"""The settings tree: every key a person can set, with its bounds, its default and what it means.

Units are part of the names (``_s`` seconds, ``_bytes``, ``_tokens``). Values are read-only once loaded;
``proxima_config.layering`` builds the tree from its layers, and the command line, the environment, the JSON Schema
and docs/configuration.md are derived from it.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, JsonValue, field_validator, model_validator

from proxima_config import vllm_flags
from proxima_config.sections.door import AuthSettings, DeadlineSettings, DoorSettings
from proxima_config.sections.http import AdminSettings, ServerSettings
from proxima_config.sections.lifecycle import LifecycleSettings
from proxima_config.sections.observing import LoggingSettings, TelemetrySettings
from proxima_config.sections.scheduling import SchedulerSettings
from proxima_config.sections.section import CliFlag, Section
from proxima_config.sections.swap import SwapSettings

__all__ = [
    "AdminSettings",
    "AuthSettings",
    "CliFlag",
    "DeadlineSettings",
    "DoorSettings",
    "LifecycleSettings",
    "LoggingSettings",
    "ProximaSettings",
    "SchedulerSettings",
    "Section",
    "ServerSettings",
    "SwapSettings",
    "TelemetrySettings",
]


class ProximaSettings(Section):
    """All settings of one gateway."""

    model: str = Field(
        default="smollm2-135m",
        min_length=1,
        description="What to serve: an embedded model's name, a Hugging Face id or a local folder. On the command "
        "line also the positional MODEL of `proxima serve`.",
    )
    server: ServerSettings = ServerSettings()
    admin: AdminSettings = AdminSettings()
    lifecycle: LifecycleSettings = LifecycleSettings()
    auth: AuthSettings = AuthSettings()
    door: DoorSettings = DoorSettings()
    deadlines: DeadlineSettings = DeadlineSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    swap: SwapSettings = SwapSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    logging: LoggingSettings = LoggingSettings()
    engine: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="vLLM's own flags by name, such as max_num_seqs. What is not set here has vLLM's own default.",
    )

    @field_validator("engine")
    @classmethod
    def _known_flags_only(cls, engine: dict[str, JsonValue]) -> dict[str, JsonValue]:
        flags = [vllm_flags.find(name) for name in engine]
        return {flag.dest: flag.parse(value, text=False) for flag, value in zip(flags, engine.values(), strict=True)}

    @model_validator(mode="after")
    def _certificate_and_key_go_together(self) -> Self:
        if bool(self.server.tls_cert_file) != bool(self.server.tls_key_file):
            raise ValueError("server.tls_cert_file and server.tls_key_file must be set together")
        if self.admin.token and self.admin.token_file:
            raise ValueError("admin.token and admin.token_file contradict each other; set one of them")
        return self

    @model_validator(mode="after")
    def _own_scheduler_class_needs_native(self) -> Self:
        if self.engine.get("scheduler_cls") is not None and self.scheduler.kind != "native":
            raise ValueError(
                "engine.scheduler_cls replaces the scheduler and so needs scheduler.kind native (--scheduler native)"
            )
        return self
