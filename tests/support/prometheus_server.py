"""A real Prometheus, installed or from Debian's package, and its `promtool`."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import debian
import httpx
from ports import free_ports

START_TIMEOUT_S = 60


def programs(cache: Path) -> Path:
    """Folder with `prometheus` and `promtool`; skips the test where there are none to be had."""
    if (found := shutil.which("promtool")) and shutil.which("prometheus"):
        return Path(found).parent
    folder = cache / "usr" / "bin"
    if not folder.exists():
        debian.unpack("prometheus", cache)
    return folder


class Prometheus:
    """One that scrapes a gateway every second, and evaluates a file of rules."""

    def __init__(self, folder: Path, target: str, work: Path, rules: Path | None = None) -> None:
        config = work / "prometheus.yml"
        job = f"{{job_name: gateway, static_configs: [{{targets: ['{target.removeprefix('http://')}']}}]}}"
        config.write_text(
            f"global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nscrape_configs: [{job}]\n{_rule_files(rules)}"
        )
        (port,) = free_ports(1)
        self._url = f"http://127.0.0.1:{port}"
        self._process = subprocess.Popen(
            [
                folder / "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={work / 'data'}",
                f"--web.listen-address={self._url.removeprefix('http://')}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self) -> Prometheus:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Its answer to an instant query, as soon as there is one."""
        for _ in self._attempts():
            with contextlib.suppress(httpx.TransportError):
                answer = httpx.get(f"{self._url}/api/v1/query", params={"query": expression}, trust_env=False)
                if answer.status_code == 200 and (result := answer.json()["data"]["result"]):
                    return list(result)
        raise AssertionError(f"Prometheus never had an answer to {expression}")

    def _attempts(self) -> Iterator[None]:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            yield
            time.sleep(0.3)


def _rule_files(rules: Path | None) -> str:
    return f"rule_files: ['{rules}']\n" if rules else ""
