"""Detection of the machine, on made-up roots."""

from __future__ import annotations

import pytest

from proxima_config import hardware


@pytest.fixture
def root(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "dev").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text("processor : 0\nflags\t\t: fpu avx2 avx512f\n\nprocessor : 1\n")
    return tmp_path


@pytest.fixture(params=["gpu_build", "cpu_build"])
def build(request, monkeypatch):
    monkeypatch.setattr(hardware, "_is_cpu_build", lambda: request.param == "cpu_build")
    return request.param


@pytest.mark.parametrize("device", ["nvidia0", "kfd", "dxg"])
def test_a_gpu_counts_unless_the_installed_vllm_cannot_use_it(root, build, device):
    (root / "dev" / device).touch()
    assert hardware.detect(root, {}).has_gpu is (build == "gpu_build")


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_a_hidden_gpu_does_not_count(root, monkeypatch, hidden):
    monkeypatch.setattr(hardware, "_is_cpu_build", lambda: False)
    (root / "dev" / "nvidia0").touch()
    assert hardware.detect(root, {"CUDA_VISIBLE_DEVICES": hidden}).has_gpu is False
    assert hardware.detect(root, {"CUDA_VISIBLE_DEVICES": "0"}).has_gpu is True


def test_the_control_device_alone_is_no_gpu(root, monkeypatch):
    monkeypatch.setattr(hardware, "_is_cpu_build", lambda: False)
    (root / "dev" / "nvidiactl").touch()
    assert hardware.detect(root, {}).has_gpu is False


def test_cpu_flags_are_read_and_may_be_unknown(root):
    assert hardware.detect(root, {}).cpu_flags == {"fpu", "avx2", "avx512f"}
    (root / "proc" / "cpuinfo").unlink()
    assert hardware.detect(root, {}).cpu_flags == frozenset()


@pytest.mark.parametrize(
    ("name", "text", "limited"),
    [
        pytest.param("memory.max", "1000\n", True, id="v2"),
        pytest.param("memory.max", "max\n", False, id="v2_without_limit"),
        pytest.param("memory/memory.limit_in_bytes", "1000\n", True, id="v1"),
        pytest.param("memory/memory.limit_in_bytes", "9223372036854771712\n", False, id="v1_without_limit"),
    ],
)
def test_memory_is_what_the_container_may_use(root, name, text, limited):
    path = root / "sys" / "fs" / "cgroup" / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    found = hardware.detect(root, {}).memory_bytes
    assert found == 1000 if limited else found > 1000


def test_this_machine_can_be_detected():
    found = hardware.detect()
    assert found.cores >= 1
    assert found.memory_bytes > 0
