"""Counts kept by the gateway process itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from prometheus_client.registry import Collector

from proxima_config.metrics import requests as catalogue
from proxima_server.errors import ErrorCode
from proxima_server.metrics.families import Family, family
from proxima_server.observability.record import current
from proxima_server.parameters import OPTIONAL_PARAMS

OTHER_METHOD = OTHER_PARAM = "other"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class GatewayMetrics(Collector):
    """Plain counts on one event loop, turned into families when Prometheus asks."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._stream_errors: Counter[str] = Counter(dict.fromkeys((code.value for code in ErrorCode), 0))
        self._ignored_params: Counter[str] = Counter(dict.fromkeys((*sorted(OPTIONAL_PARAMS), OTHER_PARAM), 0))
        self._in_flight = 0

    @contextmanager
    def in_flight(self) -> Iterator[None]:
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1

    def count_request(self, route: str, method: str, status: int) -> None:
        # Clients may send any word as method; each would become a series.
        known = method if method in _METHODS else OTHER_METHOD
        self._requests[route, known, str(status)] += 1

    def count_stream_error(self, code: ErrorCode) -> None:
        self._stream_errors[code.value] += 1
        current().error_code = code.value

    def count_ignored_params(self, names: Iterable[str]) -> None:
        for name in names:
            # Clients choose what they send; each word of theirs would become a series.
            self._ignored_params[name if name in OPTIONAL_PARAMS else OTHER_PARAM] += 1

    def collect(self) -> Iterator[Family]:
        yield family(catalogue.HTTP_REQUESTS, list(self._requests.items()))
        yield family(catalogue.HTTP_IN_FLIGHT, [((), self._in_flight)])
        yield family(catalogue.IGNORED_PARAMS, [((name,), n) for name, n in self._ignored_params.items()])
        yield family(catalogue.STREAM_ERRORS, [((code,), n) for code, n in self._stream_errors.items()])
