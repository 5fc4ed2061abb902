"""Layers of the settings: which one wins, and what a mistake in any of them says."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxima_config.errors import ConfigError
from proxima_config.hardware import Hardware
from proxima_config.layering import load_settings
from proxima_config.tree import env_name, keys

CPU = Hardware(has_gpu=False, cpu_flags=frozenset({"avx2"}), cores=2, memory_bytes=8 << 30)
AVX512 = Hardware(has_gpu=False, cpu_flags=frozenset({"avx2", "avx512f"}), cores=2, memory_bytes=8 << 30)
GPU = Hardware(has_gpu=True, cpu_flags=frozenset({"avx2"}), cores=16, memory_bytes=128 << 30)

VALUES = {
    "model": st.sampled_from(["a/b", "./folder"]),
    "server.port": st.integers(0, 65535),
    "server.docs": st.booleans(),
    "scheduler.max_wait_s": st.integers(0, 86400).map(float),
    "logging.level": st.sampled_from(["debug", "info", "warning", "error"]),
    "engine.max_num_seqs": st.integers(1, 1000),
    "engine.block_size": st.sampled_from([32, 64]),
    "engine.enforce_eager": st.booleans(),
    "engine.dtype": st.sampled_from(["float32", "float16"]),
    "engine.compilation_config": st.dictionaries(st.sampled_from(["mode", "level"]), st.integers(0, 3)),
}
LAYER = st.fixed_dictionaries({}, optional=VALUES)


def value_of(loaded, key):
    section, _, name = key.rpartition(".")
    if section == "engine":
        return loaded.settings.engine.get(name)
    return getattr(getattr(loaded.settings, section) if section else loaded.settings, name)


def as_text(value):
    return value if isinstance(value, str) else json.dumps(value)


def as_file(values):
    tree = {}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        (tree.setdefault(section, {}) if section else tree)[name] = value
    return json.dumps(tree)


@settings(max_examples=150, deadline=None)
@given(cli=LAYER, environment=LAYER, in_file=LAYER.filter(bool), machine=st.sampled_from([CPU, AVX512, GPU]))
def test_the_highest_layer_that_has_a_value_wins_and_is_named_as_its_origin(cli, environment, in_file, machine):
    without = load_settings(environ={}, hardware=machine)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "proxima.yaml"
        path.write_text(as_file(in_file), encoding="utf-8")
        loaded = load_settings(
            cli={key: as_text(value) for key, value in cli.items()},
            environ={env_name(key): as_text(value) for key, value in environment.items()},
            config_file=path,
            hardware=machine,
        )
    for key in VALUES:
        if key in cli:
            expected = (cli[key], "command line")
        elif key in environment:
            expected = (environment[key], f"environment {env_name(key)}")
        elif key in in_file:
            expected = (in_file[key], f"file {path}:1")
        else:
            expected = (value_of(without, key), without.origins.get(key))
        assert (value_of(loaded, key), loaded.origins.get(key)) == expected


@pytest.mark.parametrize(
    ("machine", "preset"),
    [pytest.param(CPU, "cpu-embedded", id="no_gpu"), pytest.param(GPU, "gpu", id="with_gpu")],
)
def test_the_default_preset_follows_the_hardware(machine, preset):
    loaded = load_settings(environ={}, hardware=machine)
    assert loaded.preset == preset
    assert f"preset {preset}" in loaded.origins.values()


def test_the_embedded_preset_bounds_memory_so_that_a_second_gateway_fits():
    engine = load_settings(environ={}, hardware=CPU).settings.engine
    assert engine["kv_cache_memory_bytes"] == 1 << 30
    assert (engine["block_size"], engine["max_model_len"], engine["enforce_eager"]) == (32, 4096, True)


class TestTheLengthOfARequest:
    """A preset's is an upper bound, a user's is what he says."""

    def test_by_a_preset(self):
        loaded = load_settings(environ={}, hardware=CPU)
        assert loaded.max_model_len_bound == 4096
        assert loaded.origins["engine.max_model_len"] == "preset cpu-embedded (upper bound)"

    @pytest.mark.parametrize(
        ("layer", "origin"),
        [
            pytest.param({"cli": {"engine.max_model_len": "4096"}}, "command line", id="command_line"),
            pytest.param(
                {"environ": {"PROXIMA__ENGINE__MAX_MODEL_LEN": "4096"}},
                "environment PROXIMA__ENGINE__MAX_MODEL_LEN",
                id="environment",
            ),
        ],
    )
    def test_by_the_user_though_it_is_the_same(self, layer, origin):
        loaded = load_settings(**{"environ": {}, "hardware": CPU, **layer})
        assert loaded.max_model_len_bound is None
        assert loaded.origins["engine.max_model_len"] == origin

    @pytest.mark.parametrize("text", ["max_model_len: 4096", "max_model_len: null", "max_model_len: auto"])
    def test_by_a_file(self, tmp_path, text):
        path = tmp_path / "proxima.yaml"
        path.write_text(f"preset: cpu-embedded\nengine:\n  {text}\n")
        loaded = load_settings(environ={}, config_file=path, hardware=CPU)
        assert loaded.max_model_len_bound is None
        assert loaded.origins["engine.max_model_len"] == f"file {path}:3"

    def test_by_nobody(self):
        loaded = load_settings(environ={}, preset="cpu", hardware=CPU)
        assert loaded.max_model_len_bound is None


@pytest.mark.parametrize("name", ["cpu-embedded", "cpu", "gpu", "gpu-throughput", "gpu-latency"])
def test_every_preset_loads(name):
    assert load_settings(environ={}, preset=name, hardware=CPU).preset == name


def test_a_preset_may_be_named_by_command_line_environment_or_file(tmp_path):
    path = tmp_path / "proxima.yaml"
    path.write_text("preset: gpu-latency\n")
    named_in_file = load_settings(environ={}, config_file=path, hardware=CPU)
    assert named_in_file.preset == "gpu-latency"
    named_in_environment = load_settings(environ={"PROXIMA__PRESET": "cpu"}, config_file=path, hardware=CPU)
    assert named_in_environment.preset == "cpu"
    environ = {"PROXIMA__PRESET": "cpu"}
    assert load_settings(environ=environ, config_file=path, preset="gpu", hardware=CPU).preset == "gpu"


def test_the_environment_may_name_the_file(tmp_path):
    path = tmp_path / "proxima.yaml"
    path.write_text("server:\n  port: 9000\n")
    loaded = load_settings(environ={"PROXIMA__CONFIG": str(path)}, hardware=CPU)
    assert loaded.settings.server.port == 9000
    assert loaded.origins["server.port"] == f"file {path}:2"


@pytest.mark.parametrize(
    ("machine", "engine", "dtype"),
    [
        pytest.param(CPU, {}, "float32", id="avx2_only"),
        pytest.param(AVX512, {}, "bfloat16", id="avx512"),
        pytest.param(AVX512, {"engine.tensor_parallel_size": 2}, "float32", id="several_ranks"),
        pytest.param(AVX512, {"engine.pipeline_parallel_size": 2}, "float32", id="several_stages"),
        pytest.param(AVX512, {"engine.dtype": "auto"}, "auto", id="given"),
        pytest.param(GPU, {}, None, id="gpu_left_to_vllm"),
    ],
)
def test_dtype_follows_the_hardware(machine, engine, dtype):
    loaded = load_settings(cli=engine, environ={}, hardware=machine)
    assert loaded.settings.engine.get("dtype") == dtype


def test_variables_that_kubernetes_injects_are_ignored():
    environ = {
        "PROXIMA_PORT": "tcp://10.0.0.1:8000",
        "PROXIMA_SERVICE_HOST": "10.0.0.1",
        "PROXIMA_PORT_8000_TCP_ADDR": "10.0.0.1",
    }
    assert load_settings(environ=environ, hardware=CPU) == load_settings(environ={}, hardware=CPU)


def test_an_empty_variable_counts_as_not_set():
    assert load_settings(environ={"PROXIMA__SERVER__PORT": ""}, hardware=CPU).settings.server.port == 8000


def test_null_gives_vllm_its_own_default_back(tmp_path):
    path = tmp_path / "proxima.yaml"
    path.write_text("engine:\n  kv_cache_memory_bytes: null\n")
    loaded = load_settings(environ={}, config_file=path, hardware=CPU)
    assert loaded.settings.engine["kv_cache_memory_bytes"] is None
    assert load_settings(cli={"engine.kv_cache_memory_bytes": "None"}, environ={}, hardware=CPU).settings == (
        loaded.settings
    )


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        pytest.param(
            {"PROXIMA__SERVER__PROT": "1"},
            "environment PROXIMA__SERVER__PROT: unknown key server.prot; did you mean PROXIMA__SERVER__PORT?",
            id="unknown_key",
        ),
        pytest.param(
            {"PROXIMA__PORT": "1"},
            "environment PROXIMA__PORT: unknown key port; did you mean PROXIMA__SERVER__PORT?",
            id="section_forgotten",
        ),
        pytest.param(
            {"PROXIMA__ENGINE__MAX_NUM_SEQ": "1"},
            "environment PROXIMA__ENGINE__MAX_NUM_SEQ: engine.max_num_seq is no vLLM flag; "
            "did you mean engine.max_num_seqs?",
            id="unknown_flag",
        ),
        pytest.param(
            {"PROXIMA__ENGINE__PORT": "1"},
            "environment PROXIMA__ENGINE__PORT: engine.port is not passed to vLLM: use the key `server.port`",
            id="flag_of_vllms_server",
        ),
        pytest.param(
            {"PROXIMA__SERVER__PORT": "70000"},
            "environment PROXIMA__SERVER__PORT: server.port: '70000' must be less than or equal to 65535",
            id="out_of_bounds",
        ),
        pytest.param(
            {"PROXIMA__ENGINE__MAX_NUM_SEQS": "0"},
            "environment PROXIMA__ENGINE__MAX_NUM_SEQS: engine.max_num_seqs: '0' must be at least 1",
            id="out_of_vllms_bounds",
        ),
        pytest.param(
            {"PROXIMA__SCHEDULER__KIND": "nativ"},
            "environment PROXIMA__SCHEDULER__KIND: scheduler.kind: 'nativ' must be 'proxima', 'native' or 'gang'",
            id="no_such_choice",
        ),
        pytest.param(
            {"PROXIMA__ENGINE__HF_TOKEN": "--secret", "PROXIMA__ENGINE__SEED": "x"},
            "environment PROXIMA__ENGINE__SEED: engine.seed: 'x' must be an integer",
            id="secret_flag_is_fine",
        ),
        pytest.param(
            {"PROXIMA__PRESET": "gpus"}, "preset: 'gpus' is no preset; did you mean gpu?", id="unknown_preset"
        ),
    ],
)
def test_a_mistake_names_key_value_rule_and_nearest_key(environ, message):
    with pytest.raises(ConfigError) as caught:
        load_settings(environ=environ, hardware=CPU)
    assert str(caught.value) == message


def test_all_mistakes_of_all_layers_are_reported_at_once(tmp_path):
    path = tmp_path / "proxima.yaml"
    path.write_text("server:\n  port: 99999\n  hots: x\nengine:\n  dtype: floot16\n")
    with pytest.raises(ConfigError) as caught:
        load_settings(
            cli={"server.port": "x"}, environ={"PROXIMA__LOGGING__LEVEL": "loud"}, config_file=path, hardware=CPU
        )
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[0] for line in lines] == [
        f"file {path}:2",
        f"file {path}:3",
        f"file {path}:5",
        "environment PROXIMA__LOGGING__LEVEL",
        "command line",
    ]
    assert "did you mean server.host?" in lines[1]
    assert "did you mean float16?" in lines[2]


def test_a_secret_never_appears_in_an_error():
    with pytest.raises(ConfigError) as caught:
        load_settings(environ={"PROXIMA__ENGINE__KV_TRANSFER_CONFIG": "no-json-s3cret"}, hardware=CPU)
    assert "must be valid JSON" in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        load_settings(cli={"engine.hf_token": ["s3cret"]}, environ={}, hardware=CPU)
    assert "s3cret" not in str(caught.value)


def test_an_own_scheduler_class_needs_the_native_scheduler():
    with pytest.raises(ConfigError, match="--scheduler native"):
        load_settings(cli={"engine.scheduler_cls": "my.Scheduler"}, environ={}, hardware=CPU)
    cli = {"engine.scheduler_cls": "my.Scheduler", "scheduler.kind": "native"}
    assert load_settings(cli=cli, environ={}, hardware=CPU).settings.engine["scheduler_cls"] == "my.Scheduler"


def test_settings_do_not_change_after_loading():
    loaded = load_settings(environ={}, hardware=CPU)
    with pytest.raises(ValueError, match="frozen"):
        loaded.settings.server.port = 1


def test_every_key_has_a_text_a_default_and_its_own_flag():
    assert all(key.field.description and not key.field.is_required() for key in keys().values())
    flags = [key.flag for key in keys().values()]
    assert len(set(flags)) == len(flags)
