"""Environment of the engine processes on CPU, and the combinations that are refused there."""

from __future__ import annotations

import pytest

from proxima_config.errors import ConfigError
from proxima_engine import platform_cpu

WIDE = frozenset({"sse2", "avx2", "avx512f"})


TCMALLOC, IOMP = "libtcmalloc_minimal.so.4", "/venv/lib/libiomp5.so"


def defaults(engine=None, environ=None, cpus=(0, 1), numa_nodes=1, quota=None, libraries=()):
    return platform_cpu.defaults(
        engine or {}, environ or {}, cpus=cpus, numa_nodes=numa_nodes, quota=quota, libraries=libraries
    )


def test_all_allowed_cpus_compute_and_none_is_claimed_by_pinning():
    assert defaults(cpus=(2, 5, 7)) == {
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "3",
        "KMP_BLOCKTIME": "5",
        "KMP_TPAUSE": "0",
    }


def test_threads_are_pinned_where_memory_has_more_than_one_node():
    assert defaults(cpus=(2, 5, 7), numa_nodes=2)["VLLM_CPU_OMP_THREADS_BIND"] == "2,5,7"


def test_memory_nodes_are_counted(tmp_path):
    assert platform_cpu.numa_nodes(tmp_path / "none") == 1
    for name in ("node0", "node1", "possible"):
        (tmp_path / name).mkdir()
    assert platform_cpu.numa_nodes(tmp_path) == 2


@pytest.mark.parametrize(
    ("engine", "cpus", "binding"),
    [
        pytest.param({"tensor_parallel_size": 2}, (0, 1, 2, 3), "0,2|1,3", id="shared_out"),
        pytest.param({"data_parallel_size": 2}, (0, 1), "0|1", id="data_parallel"),
        pytest.param({"prefill_context_parallel_size": 2}, (0, 1), "0|1", id="context_parallel"),
        pytest.param({"tensor_parallel_size": 3}, (0, 1), "0|1|0", id="more_ranks_than_cpus"),
    ],
)
def test_ranks_share_the_cpus(engine, cpus, binding):
    assert defaults(engine, cpus=cpus)["VLLM_CPU_OMP_THREADS_BIND"] == binding


def test_a_cpu_quota_limits_threads_without_pinning_them():
    wanted = defaults(cpus=range(64), quota=4.5)
    assert (wanted["VLLM_CPU_OMP_THREADS_BIND"], wanted["OMP_NUM_THREADS"]) == ("nobind", "4")


@pytest.mark.parametrize(
    ("engine", "binding", "chosen"),
    [
        pytest.param({}, "nobind", platform_cpu.ONE_PROCESS_EXECUTOR, id="one_rank"),
        pytest.param({"tensor_parallel_size": 2}, "nobind", None, id="two_ranks"),
        pytest.param({"data_parallel_size": 2}, "nobind", None, id="two_engines"),
        pytest.param({"prefill_context_parallel_size": 2}, "nobind", None, id="two_parts_of_a_prompt"),
        pytest.param({}, "0,1", None, id="pinned_threads"),
        pytest.param({"distributed_executor_backend": "mp"}, "nobind", None, id="the_users_own"),
    ],
)
def test_a_single_rank_computes_inside_the_engine_core(engine, binding, chosen):
    assert platform_cpu.executor(engine, {"VLLM_CPU_OMP_THREADS_BIND": binding}) == chosen


def test_the_users_own_environment_wins():
    own = {"VLLM_CPU_OMP_THREADS_BIND": "1", "VLLM_CPU_NUM_OF_RESERVED_CPU": "1"}
    assert defaults(environ=own) == {}


@pytest.mark.parametrize(
    ("present", "own", "preloaded"),
    [
        pytest.param([TCMALLOC, IOMP], "", f"{TCMALLOC}:{IOMP}", id="both"),
        pytest.param([IOMP], "", IOMP, id="one"),
        pytest.param([], "", None, id="neither"),
        pytest.param([TCMALLOC, IOMP], "/opt/libx.so", f"/opt/libx.so:{TCMALLOC}:{IOMP}", id="others_stay"),
        pytest.param([IOMP], "/opt/libgomp.so.1", None, id="own_openmp_wins"),
        pytest.param([TCMALLOC, IOMP], "/opt/libjemalloc.so.2", f"/opt/libjemalloc.so.2:{IOMP}", id="own_malloc_wins"),
        pytest.param([IOMP], "a.so b.so", f"a.so:b.so:{IOMP}", id="separated_by_spaces"),
    ],
)
def test_libraries_that_are_present_are_preloaded(present, own, preloaded):
    assert defaults(environ={"LD_PRELOAD": own}, libraries=present).get("LD_PRELOAD") == preloaded


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        pytest.param({"cpu.max": "150000 100000"}, 1.5, id="v2"),
        pytest.param({"cpu.max": "max 100000"}, None, id="v2_unlimited"),
        pytest.param({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2.0, id="v1"),
        pytest.param({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None, id="v1_unlimited"),
        pytest.param({}, None, id="no_cgroup"),
        pytest.param({"cpu.max": "nonsense"}, None, id="unreadable"),
    ],
)
def test_cpu_quota_of_the_cgroup(tmp_path, files, quota):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert platform_cpu.cpu_quota(tmp_path) == quota


def numerics(dtype="float32", *, compiled=False, tensor_parallel_size=1, quantization=None):
    return platform_cpu.Numerics(dtype, compiled, tensor_parallel_size, quantization)


@pytest.mark.parametrize(
    ("bad", "remedy"),
    [
        pytest.param(numerics("bfloat16", compiled=True), "enforce_eager=true", id="compiled_bfloat16"),
        pytest.param(numerics("bfloat16", tensor_parallel_size=2), "dtype=float32", id="bfloat16_on_ranks"),
        pytest.param(numerics(quantization="fp8"), "int8_per_channel_weight_only", id="fp8"),
    ],
)
def test_known_bad_combinations_are_refused_with_a_remedy(bad, remedy):
    with pytest.raises(ConfigError, match=remedy):
        platform_cpu.refuse_known_bad(bad, WIDE)


@pytest.mark.parametrize(
    "good",
    [
        pytest.param(numerics(compiled=True), id="compiled_float32"),
        pytest.param(numerics(tensor_parallel_size=2), id="float32_on_ranks"),
        pytest.param(numerics("bfloat16"), id="eager_bfloat16"),
        pytest.param(numerics(quantization="int8_per_channel_weight_only"), id="int8"),
    ],
)
def test_known_good_combinations_pass_in_silence(good, caplog):
    platform_cpu.refuse_known_bad(good, WIDE)
    assert not caplog.records


@pytest.mark.parametrize(
    ("cpu_flags", "warned"),
    [
        pytest.param({"sse2", "avx2"}, True, id="avx2_only"),
        pytest.param({"sse2", "avx512f"}, False, id="avx512"),
        pytest.param({"asimd", "bf16"}, False, id="arm"),
    ],
)
def test_slow_bfloat16_is_warned_about(cpu_flags, warned, caplog):
    platform_cpu.refuse_known_bad(numerics("bfloat16"), frozenset(cpu_flags))
    assert ("engine.dtype=float32" in caplog.text) is warned
