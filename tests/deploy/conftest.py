"""Programs that several of these tests run."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_server import programs


@pytest.fixture(scope="session")
def prometheus_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with Prometheus and promtool."""
    return programs(tmp_path_factory.mktemp("prometheus"))


@pytest.fixture(scope="session")
def promtool(prometheus_programs: Path) -> Path:
    return prometheus_programs / "promtool"
