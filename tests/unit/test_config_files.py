"""Configuration files: both spellings, and a clear error with file and line for everything else."""

from __future__ import annotations

import pytest

from proxima_config.errors import ConfigError
from proxima_config.layering import load_settings
from proxima_config.yaml_file import read_file


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "proxima.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.mark.parametrize("name", ["max_num_seqs", "max-num-seqs"])
def test_names_have_dashes_or_underscores(write, name):
    path = write(f"engine:\n  {name}: 8\nserver:\n  root-path: /llm\n")
    loaded = load_settings(environ={}, config_file=path)
    assert loaded.settings.engine["max_num_seqs"] == 8
    assert loaded.settings.server.root_path == "/llm"


def test_the_other_name_of_a_flag_is_the_same_flag(write):
    loaded = load_settings(environ={}, config_file=write("engine: {device-memory-utilization: 0.5}\n"))
    assert loaded.settings.engine["gpu_memory_utilization"] == 0.5


def test_sections_may_be_empty(write):
    path = write("model: a/b\nserver:\ntelemetry: {}\nengine:\n")
    assert load_settings(environ={}, config_file=path).settings.model == "a/b"


def test_values_below_a_flag_stay_as_they_are(write):
    path = write("engine:\n  hf-overrides:\n    rope-scaling: {factor: 2.0}\n    since: 2024-01-01\n")
    loaded = load_settings(environ={}, config_file=path)
    assert loaded.settings.engine["hf_overrides"] == {"rope-scaling": {"factor": 2.0}, "since": "2024-01-01"}


def test_numbers_and_json_are_written_as_people_do(write):
    path = write(
        "engine:\n  max_model_len: 4k\n  kv_cache_memory_bytes: 1G\n  revision: 123\n  served_model_name: one\n"
        "  compilation_config: '{\"mode\": 0}'\n  lora_modules: [{name: a, path: b}, c=d]\n"
    )
    engine = load_settings(environ={}, config_file=path).settings.engine
    assert engine["max_model_len"] == 4000
    assert engine["kv_cache_memory_bytes"] == 1 << 30
    assert engine["revision"] == "123"
    assert engine["served_model_name"] == ["one"]
    assert engine["compilation_config"] == {"mode": 0}
    assert engine["lora_modules"] == [{"name": "a", "path": "b"}, "c=d"]


def test_anchors_and_merges_work(write):
    path = write("engine:\n  compilation_config: &shared {mode: 0}\n  kernel_config:\n    <<: *shared\n    a: 1\n")
    assert read_file(path)["engine.kernel_config"].value == {"mode": 0, "a": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", ": the file is empty; it must have at least one key", id="empty"),
        pytest.param("# only a comment\n", ": the file is empty; it must have at least one key", id="comment"),
        pytest.param("{}\n", ": the file is empty; it must have at least one key", id="empty_mapping"),
        pytest.param("- a\n- b\n", ":1: the file must be a mapping of keys to values", id="list"),
        pytest.param("just words\n", ":1: the file must be a mapping of keys to values", id="scalar"),
        pytest.param(
            "server:\n  port: 1\n  port: 2\n", ":3: duplicate key port; it is already set in line 2", id="twice"
        ),
        pytest.param(
            "engine:\n  max_num_seqs: 1\n  max-num-seqs: 2\n",
            ":3: duplicate key max-num-seqs; it is already set in line 2",
            id="twice_in_both_spellings",
        ),
        pytest.param("server:\n\n\nserver:\n", ":4: duplicate key server; it is already set in line 1", id="section"),
        pytest.param("engine:\n  kernel_config:\n    a: 1\n    a: 2\n", ":4: duplicate key a", id="below_a_flag"),
        pytest.param(
            "server: {port: 1\n", ":2: not valid YAML: expected ',' or '}', but got '<stream end>'", id="open"
        ),
        pytest.param("a: 'x\n", ":2: not valid YAML: found unexpected end of stream", id="open_quote"),
        pytest.param("8000: x\n", ":1: a key must be a name, not '8000'", id="number_as_key"),
        pytest.param("? [a]\n: x\n", ":1: a key must be a name, not a collection", id="list_as_key"),
        pytest.param(
            "server.port: 1\n", ":1: server.port: write the part after the dot as a key one level below", id="dot"
        ),
        pytest.param(
            "model: !!python/name:os.system\n", ":1: not valid YAML: could not determine a constructor", id="tag"
        ),
        pytest.param("a: &x {b: *x}\n", ": nested too deeply, or a part of itself", id="cycle"),
        pytest.param("[" * 5000, ": nested too deeply, or a part of itself", id="depth"),
        pytest.param("a: 1\n---\nb: 1\n", ":2: not valid YAML: but found another document", id="two_documents"),
        pytest.param(b"model: \xff\n", ": not a text file in UTF-8 (byte 7)", id="bytes"),
        pytest.param(b"model: \x00\n", ": not valid YAML: unacceptable character #x0000", id="control"),
    ],
)
def test_a_broken_file_is_refused_with_file_and_line(write, text, message):
    path = write(text)
    with pytest.raises(ConfigError) as caught:
        read_file(path)
    assert str(caught.value).startswith(f"{path}{message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("server: 8000\n", "server must be a mapping of keys to values, not 8000", id="section_value"),
        pytest.param("engine: [a]\n", "engine must be a mapping of keys to values, not ['a']", id="engine_value"),
        pytest.param('server: {port: "8000"}\n', "server.port: '8000' must be a valid integer", id="quoted_port"),
        pytest.param(
            'engine: {max_num_seqs: "8"}\n', "engine.max_num_seqs: '8' must be an integer, not a text", id="quoted_flag"
        ),
        pytest.param("scheduler: {max_wait_s: true}\n", "scheduler.max_wait_s: True must be a valid number", id="bool"),
        pytest.param("scheduler: {max_wait_s: .inf}\n", "scheduler.max_wait_s: inf must be ", id="infinite"),
        pytest.param("engine: {enforce_eager: 1}\n", "must be true or false, not the number 1", id="number_as_bool"),
        pytest.param("engine: {seed: null}\n", "engine.seed: None must not be null", id="null"),
        pytest.param("engine: {compilation_config: [1]}\n", "must be a mapping (JSON object), not a list", id="json"),
        pytest.param("preset: [gpu]\n", "preset: ['gpu'] must be a preset's name", id="preset"),
        pytest.param("max_num_seqs: 8\n", "unknown key max_num_seqs; did you mean engine.max_num_seqs?", id="level"),
        pytest.param("engine: {allowed_media_domains: []}\n", "must have at least one item", id="empty_list"),
        pytest.param(
            "engine: {lora_modules: [a]}\n", "'a'] must be name=path, or a mapping with name and path", id="lora"
        ),
        pytest.param("engine: {ignore_patterns: ['-x']}\n", "must not have items that start with a dash", id="dash"),
    ],
)
def test_a_wrong_value_is_refused_with_line_key_and_rule(write, text, message):
    path = write(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(environ={}, config_file=path)
    assert str(caught.value).startswith(f"file {path}:1: ")
    assert message in str(caught.value)


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: no such file"):
        read_file(tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_file(tmp_path)
