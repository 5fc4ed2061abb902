"""The text that `/metrics` answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from proxima_config.metrics import process as catalogue
from proxima_engine.runtime import EnginePhase
from proxima_server.gateway import Gateway
from proxima_server.metrics.door_collector import DoorCollector
from proxima_server.metrics.families import Family, family
from proxima_server.metrics.lifecycle_collector import LifecycleCollector
from proxima_server.metrics.scheduler_collector import SchedulerCollector
from proxima_server.versions import proxima_version, vllm_version

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class EngineCollector(Collector):
    """What runs, and how it is."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[Family]:
        gateway = self._gateway
        yield family(catalogue.BUILD_INFO, [((proxima_version(), vllm_version()), 1)])
        yield family(catalogue.SCHEDULER_INFO, [((gateway.settings.scheduler.kind,), 1)])
        yield family(catalogue.ENGINE_PHASE, [((phase.value,), float(phase is gateway.phase)) for phase in EnginePhase])
        yield family(catalogue.ENGINE_UP, [((), float(gateway.phase is EnginePhase.READY))])
        yield family(catalogue.TASKS, [((), len(asyncio.all_tasks()))])


def own_registry(gateway: Gateway) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(EngineCollector(gateway))
    registry.register(gateway.metrics)
    registry.register(gateway.request_metrics)
    if gateway.settings.telemetry.gpu:
        registry.register(gateway.gpus)
    registry.register(LifecycleCollector(gateway))
    registry.register(DoorCollector(gateway.door))
    ranks = gateway.settings.engine.get("data_parallel_size")
    registry.register(
        SchedulerCollector(
            lambda: gateway.runtime.snapshot_receiver.latest,
            ranks if isinstance(ranks, int) else 1,
            gateway.initial_policy_state,
        )
    )
    return registry


def render(own: CollectorRegistry) -> bytes:
    """Ours, then vLLM's, which it registers in prometheus_client's default registry when the engine starts."""
    return generate_latest(own) + generate_latest(REGISTRY)
