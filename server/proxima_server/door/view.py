"""What the scheduler's newest snapshots say about the engine as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from proxima_config.settings import ProximaSettings
from proxima_engine.telemetry import SchedulerSnapshot
from proxima_server.door.books import EngineView

# vLLM's own for small machines; where it allows more, the queue merely seems longer than it is.
_DEFAULT_MAX_NUM_SEQS = 256


def engine_view(settings: ProximaSettings, snapshots: Mapping[int, SchedulerSnapshot]) -> EngineView:
    """All ranks together."""
    if settings.scheduler.kind == "native":
        # It reports nothing: taken to run as many as it may.
        ranks = _number(settings, "data_parallel_size", 1)
        return EngineView(_number(settings, "max_num_seqs", _DEFAULT_MAX_NUM_SEQS) * ranks)
    newest = snapshots.values()
    return EngineView(
        running=sum(snapshot.running for snapshot in newest),
        waiting=sum(sum(classes.values()) for snapshot in newest for classes in snapshot.waiting.values()),
        estimated_start_s=_earliest(snapshot.estimated_start_s for snapshot in newest),
    )


def _earliest(estimates: Iterable[Mapping[str, float]]) -> dict[str, float]:
    best: dict[str, float] = {}
    for estimate in estimates:
        for name, seconds in estimate.items():
            best[name] = min(seconds, best.get(name, seconds))
    return best


def _number(settings: ProximaSettings, flag: str, otherwise: int) -> int:
    given = settings.engine.get(flag)
    return given if isinstance(given, int) and given > 0 else otherwise
