"""A real nginx, installed or from Debian's package, as load balancer in front of several gateways."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import time
from pathlib import Path

import debian
import httpx
from ports import free_ports

START_TIMEOUT_S = 30


def program(cache: Path) -> Path:
    """nginx; skips the test where it is not to be had."""
    if found := shutil.which("nginx"):
        return Path(found)
    debian.unpack("nginx", cache)
    return cache / "usr" / "sbin" / "nginx"


class LoadBalancer:
    """Sends requests to gateways by weight, never twice, and streams what they send as it comes."""

    def __init__(self, nginx: Path, work: Path, weights: dict[str, int]) -> None:
        """`weights` by URL of a gateway."""
        self._config, self._work = work / "nginx.conf", work
        (self._port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self._port}"
        self._write(weights)
        command = [nginx, "-p", work, "-e", work / "error.log", "-c", self._config]
        self._process = subprocess.Popen([str(part) for part in command])

    def __enter__(self) -> LoadBalancer:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.TransportError):
                httpx.get(f"{self.url}/balancer", trust_env=False)
                return self
            time.sleep(0.1)
        raise AssertionError((self._work / "error.log").read_text())

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def use(self, weights: dict[str, int]) -> None:
        """New gateways for new requests; those under way end where they are. Returns when new ones go there."""
        generation = self._write(weights)
        self._process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if httpx.get(f"{self.url}/balancer", trust_env=False).text == generation:
                return
            time.sleep(0.1)
        raise AssertionError("nginx did not take its new configuration")

    def _write(self, weights: dict[str, int]) -> str:
        generation = str(time.monotonic_ns())
        servers = "".join(
            f"server {url.removeprefix('http://')} weight={weight} max_fails=0;" for url, weight in weights.items()
        )
        self._config.write_text(
            f"""
daemon off;
worker_processes 1;
pid {self._work}/nginx.pid;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path {self._work}/body;
    proxy_temp_path {self._work}/proxy;
    fastcgi_temp_path {self._work}/fastcgi;
    uwsgi_temp_path {self._work}/uwsgi;
    scgi_temp_path {self._work}/scgi;
    upstream gateways {{ {servers} keepalive 32; }}
    server {{
        listen 127.0.0.1:{self._port};
        location = /balancer {{ return 200 "{generation}"; }}
        location / {{
            proxy_pass http://gateways;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            # A failure shall be seen, not hidden by a second try.
            proxy_next_upstream off;
            proxy_buffering off;
            proxy_read_timeout 1h;
        }}
    }}
}}
"""
        )
        return generation
