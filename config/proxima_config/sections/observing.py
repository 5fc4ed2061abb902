"""Settings of what is reported and logged."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from proxima_config.sections.section import CliFlag, Section


class TelemetrySettings(Section):
    """What the engine reports to the gateway."""

    snapshot_interval_s: float = Field(
        default=0.1, ge=0.1, le=60, description="Shortest time between two scheduler snapshots that feed /metrics."
    )
    gpu: Annotated[bool, CliFlag("--gpu-metrics")] = Field(
        default=True,
        description="Show the GPUs' gauges in /metrics. Switch off where NVIDIA's dcgm-exporter is scraped too and "
        "both would be added up.",
    )
    step_log: str = Field(
        default="",
        description="File to which the engine appends one line of JSON for each step: what it computed and when. For "
        "`proxima lab calibrate`; needs scheduler.kind proxima, and one engine. Empty for none.",
    )


class LoggingSettings(Section):
    """What is written to the log."""

    level: Annotated[Literal["debug", "info", "warning", "error"], CliFlag("--log-level")] = Field(
        default="info", description="Least severe message that is logged, by the gateway and by the engine."
    )
    format: Annotated[Literal["text", "json"], CliFlag("--log-format")] = Field(
        default="text",
        description="Lines for people, or one JSON object per line for a log collector; the engine's lines too, unless "
        "engine.logging_config or VLLM_LOGGING_CONFIG_PATH says otherwise.",
    )
    access: Annotated[bool, CliFlag("--log-access")] = Field(
        default=True,
        description="Log one line per request, when it has ended: timings, sizes, key, model, class, outcome. Probes "
        "and scrapes only at level debug.",
    )
    prompts: Annotated[bool, CliFlag("--log-prompts")] = Field(
        default=False,
        description="Add the beginning of the prompt to that line. E-mail addresses, numbers of six digits and more, "
        "keys, tokens and embedded data are blotted out; names and whatever else people write are not.",
    )
    prompt_chars: Annotated[int, CliFlag("--log-prompt-chars")] = Field(
        default=200, ge=1, le=10000, description="Characters of a prompt that are logged at most, if any are."
    )
