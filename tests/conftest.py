"""One real gateway for all tests marked `engine`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import hypothesis
import openai
import pytest
from gateway_process import GatewayProcess
from interpreted_triton import interpreting
from tiny_model import write_tiny_model
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from proxima_config.forced_length import PROCESSOR
from proxima_config.import_path import keep_repository_root_off_path

# `python -m pytest` puts the repository root on the path.
keep_repository_root_off_path()

# Before torch or vLLM import it: see interpreted_triton.py.
with interpreting():
    import triton.language  # noqa: F401

# Wall-clock time is not asserted in tests: on a busy machine an example takes as long as it takes.
hypothesis.settings.register_profile("no-deadline", deadline=None)
hypothesis.settings.load_profile("no-deadline")

# A pool small enough to come under pressure, and a step small enough to split long prompts.
SHARED_GATEWAY = [
    "--preset",
    "cpu-embedded",
    "--num-gpu-blocks-override",
    "192",
    "--max-num-batched-tokens",
    "512",
    # Comments in each stream of each client, who must not trip over them.
    "--ping-s",
    "0.1",
    # Does nothing to requests that do not ask for a length.
    "--logits-processors",
    PROCESSOR,
]


class EngineTestsTogether(LoadScopeScheduling):
    """Tests run in two processes: all that need the shared engine (`tests/integration`) in one of them, others file by
    file, so that what the tests of a file share is made once. Files of `tests/e2e` start gateways of their own.

    xdist's own groups (`--dist loadgroup` of 3.8) have no effect under pytest 9.2, which ignores the names they change.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "engine" if nodeid.startswith("tests/integration/") else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> EngineTestsTogether:
    return EngineTestsTogether(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--gateway",
        metavar="URL",
        help=f"run the engine tests against this gateway, started with: proxima serve {' '.join(SHARED_GATEWAY)}",
    )


@pytest.fixture(scope="session")
def gateway_url(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Base URL of the shared gateway, which serves the embedded model."""
    running: str | None = pytestconfig.getoption("--gateway")
    if running is not None:
        yield running
        return
    with GatewayProcess(SHARED_GATEWAY, tmp_path_factory.mktemp("gateway") / "log") as gateway:
        gateway.wait_ready()
        yield gateway.url


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a generated model that loads at once and talks nonsense."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def http(gateway_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway_url, trust_env=False, timeout=120) as client:
        yield client


@pytest.fixture
def sdk(gateway_url: str) -> Iterator[openai.OpenAI]:
    """OpenAI's own client. It does not retry here: a request that fails is a failure."""
    transport = httpx.Client(trust_env=False, timeout=120)
    with openai.OpenAI(base_url=f"{gateway_url}/v1", api_key="none", max_retries=0, http_client=transport) as client:
        yield client
