"""A gateway as users start it: the console script, in a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import psutil

PROXIMA = Path(sys.executable).with_name("proxima")

START_TIMEOUT_S = 420
"""Far above the usual half a minute: several engines may be starting on two cores."""
STOP_TIMEOUT_S = 60


class GatewayProcess:
    """`proxima serve` on a free port. Its log goes to a file, whose end explains failures."""

    def __init__(self, arguments: list[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self._log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [PROXIMA, "serve", "--port", "0", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
            )
        self.url = ""

    def __enter__(self) -> GatewayProcess:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it, and whatever it has left behind."""
        family = self._family()
        self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_TIMEOUT_S)
        for each in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        self.process.wait()

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def client(self, timeout_s: float = 120) -> httpx.Client:
        return httpx.Client(base_url=self.url, trust_env=False, timeout=timeout_s)

    def wait_listening(self) -> None:
        """Until HTTP answers; the engine is still loading then."""
        marker = "Proxima on "
        for line in self._lines():
            if marker in line:
                self.url = line.split(marker)[1].split(": ")[0]
                return

    def wait_ready(self) -> None:
        self.wait_listening()
        with self.client() as client:
            self.wait_for(client, "/health/startup", 200)

    def wait_for(self, client: httpx.Client, path: str, status: int) -> None:
        for _ in self._attempts():
            if client.get(path).status_code == status:
                return

    def wait_for_log(self, text: str) -> None:
        """Until `text` stands in the log, to which the server may write after the client has its answer."""
        for _ in self._attempts():
            if text in self.log():
                return

    def wait_exit(self) -> int:
        return self.process.wait(START_TIMEOUT_S)

    def engine_processes(self) -> list[psutil.Process]:
        return [each for each in self._family() if "EngineCore" in " ".join(each.cmdline())]

    def _family(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def _lines(self) -> Iterator[str]:
        for _ in self._attempts():
            yield from self.log().splitlines()

    def _attempts(self) -> Iterator[None]:
        """Poll until the caller is satisfied; fails with the log when the process ends or takes too long."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            yield
            time.sleep(0.2)
        raise AssertionError(f"the gateway did not get that far:\n{self.log()[-4000:]}")
