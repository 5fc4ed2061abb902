"""`proxima config`, run as a user runs it."""

from __future__ import annotations

import json

import pytest

from proxima_config.masking import MASK, is_secret, shown
from proxima_server.cli.main import main


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    for name in ("PROXIMA__CONFIG", "PROXIMA__PRESET"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(capsys):
    def run(*words):
        code = main(["config", *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_show_names_every_value_and_its_origin(run, tmp_path, monkeypatch):
    path = tmp_path / "proxima.yaml"
    path.write_text("preset: cpu\nengine:\n  max-num-seqs: 4\n")
    monkeypatch.setenv("PROXIMA__LOGGING__LEVEL", "warning")
    code, out, _ = run("show", "--config", str(path), "--port", "8123", "--no-use-proxima")
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in out.splitlines()}
    assert code == 0
    assert lines["preset:"] == "cpu"
    assert lines["server.host"] == "127.0.0.1 default"
    assert lines["server.port"] == "8123 command line"
    assert lines["scheduler.kind"] == "native command line"
    assert lines["logging.level"] == "warning environment PROXIMA__LOGGING__LEVEL"
    assert lines["engine.max_num_seqs"] == f"4 file {path}:3"
    assert lines["engine.block_size"] == "32 preset cpu"


def test_show_tells_that_a_presets_length_is_an_upper_bound(run):
    for words, origin in ((), "preset cpu-embedded (upper bound)"), (("--max-model-len", "4096"), "command line"):
        _, out, _ = run("show", "--json", "--preset", "cpu-embedded", *words)
        assert json.loads(out)["settings"]["engine.max_model_len"] == {"value": 4096, "origin": origin}


def test_show_as_json_masks_secrets_at_any_depth(run):
    nested = '{"kv_connector_extra_config": {"api_key": "s3cret", "max_tokens": 5}}'
    endpoint = "http://user:s3cret@host:4317"
    code, out, _ = run(
        "show", "--json", "--hf-token", "s3cret", "--kv-transfer-config", nested, "--otlp-traces-endpoint", endpoint
    )
    settings = json.loads(out)["settings"]
    assert code == 0
    assert "s3cret" not in out
    assert settings["engine.hf_token"] == {"value": MASK, "origin": "command line"}
    assert settings["engine.kv_transfer_config"]["value"]["kv_connector_extra_config"]["max_tokens"] == 5
    assert settings["engine.otlp_traces_endpoint"]["value"] == f"http://{MASK}@host:4317"


def test_show_all_lists_vllms_own_defaults(run):
    _, out, _ = run("show", "--all", "--json")
    settings = json.loads(out)["settings"]
    assert settings["engine.gpu_memory_utilization"] == {"value": 0.92, "origin": "vLLM's default"}


def test_check_accepts_a_valid_file(run, tmp_path):
    path = tmp_path / "proxima.yaml"
    path.write_text("preset: gpu\nserver: {port: 1}\nengine: {max_num_seqs: 2}\n")
    assert run("check", str(path)) == (0, f"{path}: valid (2 settings, preset gpu)\n", "")


def test_check_lists_every_mistake_and_ignores_the_environment(run, tmp_path, monkeypatch):
    path = tmp_path / "proxima.yaml"
    path.write_text("server: {port: 99999}\nengine:\n  max_num_seq: 2\n")
    monkeypatch.setenv("PROXIMA__SERVER__PROT", "1")
    code, out, err = run("check", str(path))
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        f"proxima: error: file {path}:1: server.port: 99999 must be less than or equal to 65535",
        f"proxima: error: file {path}:3: engine.max_num_seq is no vLLM flag; did you mean engine.max_num_seqs?",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param("show --max-num-seq 8", "unknown flag --max-num-seq; did you mean --max-num-seqs?", id="flag"),
        pytest.param(
            "show --scheduler native --use-proxima",
            "--scheduler native and --use-proxima contradict each other",
            id="contradiction",
        ),
        pytest.param(
            "show --port eighty",
            "command line: server.port: 'eighty' must be a valid integer, unable to parse string as an integer",
            id="value",
        ),
        pytest.param("check nowhere.yaml", "nowhere.yaml: no such file", id="file"),
        pytest.param("show --preset cpus", "preset: 'cpus' is no preset; did you mean cpu?", id="preset"),
    ],
)
def test_a_wrong_call_is_one_line_and_exit_code_2(run, words, message):
    assert run(*words.split()) == (2, "", f"proxima: error: {message}\n")


def test_schema_is_json(run):
    code, out, _ = run("schema")
    assert code == 0
    assert json.loads(out)["properties"]["engine"]["properties"]["max-num-seqs"]["anyOf"][0]["minimum"] == 1


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("engine.hf_token", True),
        ("api-key", True),
        ("apiKey", True),
        ("api_keys", True),
        ("password", True),
        ("client_secret", True),
        ("max_tokens", False),
        ("engine.max_num_batched_tokens", False),
        ("engine.long_prefill_token_threshold", False),
        ("engine.return_tokens_as_token_ids", False),
        ("engine.tokenizer", False),
        ("keyboard", False),
    ],
)
def test_what_counts_as_a_secret(name, secret):
    assert is_secret(name) is secret
    assert (shown(name, "value") == MASK) is secret


def test_using_the_stored_login_is_no_secret():
    assert shown("hf_token", True) is True
    assert shown("hf_token", None) is None


def test_a_secret_that_is_not_set_is_seen_to_be_none(run):
    lines = [line.split() for line in run("show")[1].splitlines()]
    assert [line[1] for line in lines if line[0] in ("admin.token", "auth.api_keys")] == ['""', '""']
