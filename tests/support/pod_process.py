"""A container of the chart, run on this machine as a kubelet would run it, as far as that goes without a daemon.

Its command, environment, user and mounts are those that the chart renders. The root file system is this machine's,
under an overlay that is read-only; only what the chart mounts can be written to, and the checkout is where it is.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest
from chart import Rendered

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
START_TIMEOUT_S = 420
_RUN = """
set -e
scratch=$1; config=$2; cache=$3; checkout=$4; user=$5; shift 5
mount -t tmpfs none "$scratch"
mkdir "$scratch/changes" "$scratch/work" "$scratch/root"
mount -t overlay none -o "lowerdir=/,upperdir=$scratch/changes,workdir=$scratch/work" "$scratch/root"
cd "$scratch/root"
mkdir -p etc/proxima/config cache
echo "proxima:x:$user:$user::/tmp:/usr/sbin/nologin" >> etc/passwd
chmod 755 root  # Where the interpreter may be.
for each in proc dev sys; do mount --rbind "/$each" "$each"; done
mount -t tmpfs -o mode=1777 none tmp
mount -t tmpfs -o mode=1777 none dev/shm
mkdir -p ".$checkout"
mount --bind "$checkout" ".$checkout"
mount -o remount,bind,ro ".$checkout"
mount --bind "$config" etc/proxima/config
mount --bind "$cache" cache
mount -o remount,ro "$scratch/root"
exec chroot . setpriv --reuid "$user" --regid "$user" --clear-groups --no-new-privs --bounding-set=-all "$@"
"""


def _need_mounts() -> None:
    """Skip the test where a process may not have mounts of its own, as in an unprivileged container."""
    if os.geteuid() or not shutil.which("unshare") or not shutil.which("setpriv"):
        pytest.skip("mounts of its own need root, unshare and setpriv")
    probe = "mount -t tmpfs none /mnt && mkdir /mnt/u /mnt/w /mnt/r && "
    probe += "mount -t overlay none -o lowerdir=/etc,upperdir=/mnt/u,workdir=/mnt/w /mnt/r"
    tried = subprocess.run(["unshare", "--mount", "sh", "-c", probe], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"this machine allows no mounts: {tried.stderr.strip()}")


class PodProcess:
    """The container `proxima`, with files of the rendered ConfigMap. What lies in `work/cache` is in its cache."""

    def __init__(self, rendered: Rendered, work: Path) -> None:
        _need_mounts()
        folders = {name: work / name for name in ("scratch", "config", "cache")}
        for folder in folders.values():
            folder.mkdir(exist_ok=True)
        for name, text in rendered.one("ConfigMap", "llm-proxima")["data"].items():
            (folders["config"] / name).write_text(text)
        folders["config"].chmod(0o755)
        user = rendered.pod()["securityContext"]["runAsUser"]
        os.chown(folders["cache"], user, user)
        container, settings = rendered.container(), rendered.settings()
        self._log = work / "log"
        self.grace_s = rendered.pod()["terminationGracePeriodSeconds"]
        self.pre_stop_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
        self._ports = {"http": settings["server"]["port"], "admin": settings["admin"]["port"]}
        self._probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")}
        arguments = [*folders.values(), ROOT, user, *container["command"]]
        environment = {each["name"]: each["value"] for each in container["env"]}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", _RUN, "pod", *map(str, arguments)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={"PATH": f"{BIN}:/usr/bin:/usr/sbin:/bin:/sbin"} | environment,
            )

    def __enter__(self) -> PodProcess:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in [*psutil.Process(self.process.pid).children(recursive=True)]:
                each.kill()
        self.process.kill()
        self.process.wait()

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def url(self, port: str) -> str:
        return f"http://127.0.0.1:{self._ports[port]}"

    def probe(self, name: str) -> int:
        """Status of one of its probes; 0 while nothing listens."""
        get = self._probes[name]
        try:
            return httpx.get(f"{self.url(get['port'])}{get['path']}", trust_env=False, timeout=10).status_code
        except httpx.TransportError:
            return 0

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.probe("readiness") != 200:
            assert self.process.poll() is None, self.log()[-4000:]
            assert time.monotonic() < deadline, self.log()[-4000:]
            time.sleep(0.5)

    def terminate(self) -> None:
        """What the kubelet does when the pod is deleted: the preStop sleep, then SIGTERM."""
        time.sleep(self.pre_stop_s)
        self.process.send_signal(signal.SIGTERM)
