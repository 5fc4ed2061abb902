"""Settings of how the gateway ends, and of what it does about a failed engine."""

from __future__ import annotations

from pydantic import Field

from proxima_config.sections.section import Section


class LifecycleSettings(Section):
    """How the gateway ends, and what it does when its engine fails."""

    drain_s: float = Field(
        default=25.0,
        ge=0,
        le=86400,
        description="Seconds that running and waiting requests have to finish after SIGTERM or POST /admin/drain. Then "
        "the rest get an error and the process ends. Keep Kubernetes' terminationGracePeriodSeconds (30) some seconds "
        "above it.",
    )
    hang_s: float = Field(
        default=120.0,
        ge=0,
        le=86400,
        description="Seconds for which an engine that has requests may make no step before it counts as hung: not "
        "live, not ready. Far above the longest honest step (a long prefill; kernels compiled at first use). 0 never.",
    )
    max_restarts: int = Field(
        default=0,
        ge=0,
        le=1000,
        description="How often an engine that died or hangs is started again, within restart_window_s. Beyond it, "
        "and by default, the process ends with exit code 1 and leaves the restart to whoever started it.",
    )
    restart_window_s: float = Field(
        default=3600.0, gt=0, le=864000, description="Seconds after which a restart no longer counts."
    )
    exit_delay_s: float = Field(
        default=5.0,
        ge=0,
        le=3600,
        description="Seconds for which a gateway whose engine is lost goes on telling so, before it ends.",
    )
