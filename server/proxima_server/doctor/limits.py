"""What the operating system or the container allows: shared memory, open files, processes, ports, folders."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from proxima_engine import platform_cpu
from proxima_server import listening
from proxima_server.doctor.finding import Finding, blocker, gib, ok, warning
from proxima_server.doctor.subject import Subject
from proxima_server.open_files import WANTED

SHM = Path("/dev/shm")  # noqa: S108 - not a temporary file of ours
# Each of vLLM's message queues is a ring of ten chunks, and it refuses to start where the largest does not fit: those
# that carry the workers' answers have chunks of 24 MiB.
_QUEUE_BYTES = 10 * 24 << 20
# Between GPUs NCCL moves data through it as well.
_NCCL_BYTES = 1 << 30
_FEW_FILES = 4096
_TOO_FEW_FILES = 256
# Threads count as processes; an engine on two cores has about a hundred and fifty.
_FEW_PROCESSES = 512
_SOCKET_PATH_BYTES = 107
_OUR_SOCKET = "/proxima-12345678/snapshot"
_TEMPORARY_BYTES = 64 << 20
_PIDS = ("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max")


def check_shm(subject: Subject) -> Iterator[Finding]:
    if _computes_in_one_process(subject):
        yield ok("not used by a single rank")
        return
    if not SHM.is_dir():
        yield blocker(f"there is no {SHM}", f"mount a tmpfs at {SHM}")
        return
    free = shutil.disk_usage(SHM).free
    remedy = "raise it: docker run --shm-size 1g, Helm shmSize, or mount -o remount,size=1g /dev/shm"
    if free < _QUEUE_BYTES:
        yield blocker(f"{SHM} has {gib(free)} free, vLLM's processes need {gib(_QUEUE_BYTES)}", remedy)
    elif subject.local_ranks > 1 and free < _NCCL_BYTES:
        yield warning(f"{SHM} has {gib(free)} free; several ranks talk through it", remedy)
    else:
        yield ok(f"{gib(free)} free")


def check_open_files(_: Subject) -> Iterator[Finding]:
    """Of the hard limit: `proxima serve` raises its soft one."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = WANTED if hard == resource.RLIM_INFINITY else hard
    remedy = "raise the hard limit: ulimit -Hn, LimitNOFILE= of systemd, docker run --ulimit nofile=65535"
    if most < _TOO_FEW_FILES:
        yield blocker(f"{most} open files are allowed, too few to start", remedy)
    elif most < _FEW_FILES:
        yield warning(f"{most} open files are allowed, and each connection is one", remedy)
    else:
        yield ok(f"{most} allowed")


def check_processes(_: Subject) -> Iterator[Finding]:
    limits = [limit for limit in (_user_limit(), _cgroup_limit()) if limit is not None]
    if limits and min(limits) < _FEW_PROCESSES:
        yield blocker(
            f"{min(limits)} processes and threads are allowed, an engine needs some hundreds",
            "raise it: ulimit -u, TasksMax= of systemd, docker run --pids-limit, podPidsLimit of the kubelet",
        )
    else:
        yield ok(f"{min(limits)} allowed" if limits else "no limit")


def check_address_space(_: Subject) -> Iterator[Finding]:
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        yield ok("no limit")
    else:
        yield warning(
            f"a process may map {gib(limit)} (ulimit -v); an engine maps many times of what it uses",
            "ulimit -v unlimited",
        )


def check_ports(subject: Subject) -> Iterator[Finding]:
    settings = subject.settings
    places = [(settings.server.host, settings.server.port, "")]
    if settings.admin.port:
        places.append((settings.admin.host, settings.admin.port, "admin-"))
    free = []
    for host, port, flag in places:
        try:
            with listening.listen(host, port, flag) as sock:
                free.append(f"{host}:{port}" if port else f"{host}, any (such as {_port(sock)})")
        except listening.ListenError as error:
            message, _, remedy = str(error).partition("; ")
            yield blocker(message, remedy or f"choose another --{flag}host or --{flag}port")
    if len(free) == len(places):
        yield ok(f"free: {', '.join(free)}")


def check_temporary_folder(_: Subject) -> Iterator[Finding]:
    """Sockets between our processes lie there, and the path of a socket has a limit."""
    folder = tempfile.gettempdir()
    asked = os.environ.get("TMPDIR", folder)
    if Path(asked).resolve() != Path(folder).resolve():
        yield warning(f"TMPDIR={asked} cannot be written to; {folder} is used", "correct TMPDIR")
        return
    if len(folder.encode()) + len(_OUR_SOCKET) > _SOCKET_PATH_BYTES:
        yield blocker(
            f"{folder} is too long a path: sockets in it would have more than {_SOCKET_PATH_BYTES} bytes",
            "set TMPDIR to a shorter one",
        )
        return
    free = shutil.disk_usage(folder).free
    if free < _TEMPORARY_BYTES:
        yield warning(f"{folder} has {gib(free)} free", "free some, or set TMPDIR to a folder with more")
    else:
        yield ok(f"{folder}, {gib(free)} free")


def _computes_in_one_process(subject: Subject) -> bool:
    """Whether the engine needs no worker processes, and so no message queues to them."""
    if not subject.on_cpu:
        return subject.local_ranks == 1
    engine = subject.settings.engine
    environ = {**subject.environ, **platform_cpu.defaults_here(engine, subject.environ)}
    return platform_cpu.executor(engine, environ) is not None


def _port(sock: socket.socket) -> int:
    port: int = sock.getsockname()[1]
    return port


def _user_limit() -> int | None:
    # The kernel does not hold root to it.
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    return None if soft == resource.RLIM_INFINITY or os.geteuid() == 0 else soft


def _cgroup_limit() -> int | None:
    for path in map(Path, _PIDS):
        try:
            text = path.read_text(encoding="ascii").strip()
        except OSError:
            continue
        return int(text) if text.isdigit() else None
    return None
