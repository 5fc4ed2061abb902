"""Two gateways behind a real load balancer: a canary gets its share, and a rolling restart loses no request."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from chart import CHART, render, values_of
from gateway_process import GatewayProcess
from nginx import LoadBalancer, program

pytestmark = [pytest.mark.slow, pytest.mark.engine]
SMALL = ["--max-model-len", "2048", "--kv-cache-memory-bytes", "100000000", "--enforce-eager", "--drain-s", "120"]
CLIENTS = 4


class Fleet:
    """Gateways that serve the tiny model."""

    def __init__(self, model: Path, work: Path, stack: ExitStack) -> None:
        self._model, self._work, self._stack = model, work, stack
        self._started = 0

    def start(self) -> GatewayProcess:
        """One more; it loads still."""
        self._started += 1
        log = self._work / f"log-{self._started}"
        return self._stack.enter_context(GatewayProcess([str(self._model), *SMALL], log))


@pytest.fixture(scope="module")
def fleet(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(tiny_model, tmp_path_factory.mktemp("fleet"), stack)


@pytest.fixture(scope="module")
def pair(fleet: Fleet) -> list[GatewayProcess]:
    gateways = [fleet.start(), fleet.start()]
    for gateway in gateways:
        gateway.wait_ready()
    return gateways


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return program(tmp_path_factory.mktemp("nginx"))


def complete(url: str, max_tokens: int, *, stream: bool) -> str:
    """What went wrong, empty if nothing did."""
    body = {"prompt": "a", "max_tokens": max_tokens, "ignore_eos": True, "stream": stream}
    try:
        answer = httpx.post(f"{url}/v1/completions", json=body, trust_env=False, timeout=120)
    except httpx.TransportError as error:
        return repr(error)
    if answer.status_code != 200:
        return f"{answer.status_code}: {answer.text}"
    if stream and not answer.text.rstrip().endswith("data: [DONE]"):
        return f"a stream ended with {answer.text[-200:]}"
    return ""


def served(gateway: GatewayProcess) -> int:
    with gateway.client() as client:
        lines = client.get("/metrics").text.splitlines()
    return int(sum(float(line.split()[-1]) for line in lines if line.startswith("proxima_requests_total{")))


def test_a_canary_of_ten_percent_gets_ten_percent(pair: list[GatewayProcess], nginx: Path, tmp_path: Path):
    """The weights are those of the chart's route."""
    route = render(values_of(CHART / "ci" / "canary-stable-values.yaml")).one("HTTPRoute")
    weights = [backend["weight"] for backend in route["spec"]["rules"][0]["backendRefs"]]
    before = [served(gateway) for gateway in pair]
    urls = [gateway.url for gateway in pair]
    with (
        LoadBalancer(nginx, tmp_path, dict(zip(urls, weights, strict=True))) as balancer,
        ThreadPoolExecutor(CLIENTS) as clients,
    ):
        problems = list(clients.map(lambda _: complete(balancer.url, 1, stream=False), range(200)))
    assert [problem for problem in problems if problem] == []
    stable, canary = (served(gateway) - first for gateway, first in zip(pair, before, strict=True))
    assert stable + canary == 200
    assert 7 <= 100 * canary / 200 <= 13


def test_a_rolling_restart_under_load_loses_no_request(
    pair: list[GatewayProcess], fleet: Fleet, nginx: Path, tmp_path: Path
):
    """Each gateway goes as a pod does: out of the endpoints, SIGTERM, and a new one in when it is ready."""
    problems: list[str] = []
    stop = threading.Event()

    def client(number: int) -> int:
        sent = 0
        while not stop.is_set():
            problems.append(complete(balancer.url, 40, stream=bool(number % 2)))
            sent += 1
            time.sleep(0.1)
        return sent

    with (
        LoadBalancer(nginx, tmp_path, {gateway.url: 1 for gateway in pair}) as balancer,
        ThreadPoolExecutor(CLIENTS) as clients,
    ):
        sending = [clients.submit(client, number) for number in range(CLIENTS)]
        try:
            running = list(pair)
            for old in pair:
                new = fleet.start()
                new.wait_ready()
                running = [each for each in running if each is not old] + [new]
                balancer.use({gateway.url: 1 for gateway in running})
                old.process.terminate()
                assert old.wait_exit() == 0
        finally:
            stop.set()
        sent = sum(each.result() for each in sending)
    assert sent == len(problems)
    assert [problem for problem in problems if problem] == []
    assert all(served(gateway) > 0 for gateway in running), "the new ones must have served"
