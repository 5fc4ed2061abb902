"""Drain, restarts and stalls, read when Prometheus asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.registry import Collector

from proxima_config.metrics import process as catalogue
from proxima_server.metrics.families import Family, family

if TYPE_CHECKING:
    from proxima_server.gateway import Gateway


class LifecycleCollector(Collector):
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[Family]:
        gateway, drain = self._gateway, self._gateway.drain
        yield family(catalogue.DRAINING, [((), float(drain.draining))])
        yield family(catalogue.REQUESTS_REMAINING, [((), drain.remaining)])
        yield family(catalogue.DRAIN_SECONDS, [((), drain.remaining_s)])
        yield family(catalogue.ENGINE_RESTARTS, [((), gateway.restarts)])
        yield family(catalogue.ENGINE_STALLED, [((), gateway.runtime.heartbeat.stalled_s)])
