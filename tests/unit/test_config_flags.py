"""vLLM's flags on our command line: every form that vLLM reads, and helpful refusals."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxima_config import arguments, vllm_flags
from proxima_config.command_parser import CommandParser
from proxima_config.errors import ConfigError, UsageError
from proxima_config.flag_values import KINDS
from proxima_config.nearest import nearest
from proxima_config.owned_flags import OWNED_FLAGS
from proxima_config.tree import keys


def given_values(*words):
    parser = CommandParser(prog="proxima serve")
    arguments.add_model_argument(parser)
    arguments.add_arguments(parser)
    return arguments.cli_values(parser.parse_args(words))


def engine_value(*words):
    ((key, value),) = given_values(*words).items()
    flag = vllm_flags.find(key.removeprefix("engine."))
    return flag.dest, flag.parse(value, text=True)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param("--max-num-seqs 8", ("max_num_seqs", 8), id="dashes"),
        pytest.param("--max_num_seqs=8", ("max_num_seqs", 8), id="underscores"),
        pytest.param("-tp 2", ("tensor_parallel_size", 2), id="short"),
        pytest.param("--device-memory-utilization 0.5", ("gpu_memory_utilization", 0.5), id="other_name"),
        pytest.param("--max-model-len 4k", ("max_model_len", 4000), id="decimal"),
        pytest.param("--max-model-len 4K", ("max_model_len", 4096), id="binary"),
        pytest.param("--max-model-len 1.5k", ("max_model_len", 1500), id="fraction"),
        pytest.param("--max-model-len auto", ("max_model_len", -1), id="auto"),
        pytest.param("--max-model-len -1", ("max_model_len", -1), id="auto_as_number"),
        pytest.param("--max-num-batched-tokens 2k", ("max_num_batched_tokens", 2000), id="tokens"),
        pytest.param("--kv-cache-memory-bytes 1G", ("kv_cache_memory_bytes", 1 << 30), id="bytes"),
        pytest.param("--kv-cache-memory-bytes None", ("kv_cache_memory_bytes", None), id="none"),
        pytest.param("--enforce-eager", ("enforce_eager", True), id="bool"),
        pytest.param("--no-enable-prefix-caching", ("enable_prefix_caching", False), id="negative"),
        pytest.param("--disable-log-stats", ("disable_log_stats", True), id="switch"),
        pytest.param("--served-model-name a b", ("served_model_name", ["a", "b"]), id="list"),
        pytest.param("--device-ids 0,GPU-1", ("device_ids", [0, "GPU-1"]), id="comma_list"),
        pytest.param("--moe-backend FlashInfer-Cutlass", ("moe_backend", "flashinfer_cutlass"), id="kernel"),
        pytest.param("--hf-token", ("hf_token", True), id="token_of_the_login"),
        pytest.param("--hf-token abc", ("hf_token", "abc"), id="token"),
        pytest.param("-O3", ("optimization_level", "3"), id="level"),
        pytest.param("-O=1", ("optimization_level", "1"), id="level_equals"),
        pytest.param("-O 0", ("optimization_level", "0"), id="level_apart"),
        pytest.param('--compilation-config {"mode":0}', ("compilation_config", {"mode": 0}), id="json"),
        pytest.param('-cc={"mode":0}', ("compilation_config", {"mode": 0}), id="json_short"),
        pytest.param("--compilation-config.mode 0", ("compilation_config", {"mode": 0}), id="dotted"),
        pytest.param(
            "-cc.mode=0 --compilation_config.pass_config.fuse_x true -cc.size 4k -cc.ops+ a,b -cc.ops+ c",
            ("compilation_config", {"mode": 0, "pass_config": {"fuse_x": True}, "size": 4000, "ops": ["a", "b", "c"]}),
            id="dotted_all",
        ),
        pytest.param(
            '--kv-transfer-config {"bytes":80m,"name":"80m"}',
            ("kv_transfer_config", {"bytes": 80_000_000, "name": "80m"}),
            id="numbers_in_json",
        ),
    ],
)
def test_a_flag_is_read_as_vllm_reads_it(words, expected):
    assert engine_value(*words.split()) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param("a/b", {"model": "a/b"}, id="positional"),
        pytest.param("--port 1 a/b", {"model": "a/b", "server.port": "1"}, id="positional_last"),
        pytest.param("a/b --model a/b", {"model": "a/b"}, id="same_model_twice"),
        pytest.param("--no-docs", {"server.docs": False}, id="no_docs"),
        pytest.param("--use-proxima", {"scheduler.kind": "proxima"}, id="use"),
        pytest.param("--no-use-proxima --scheduler native", {"scheduler.kind": "native"}, id="agreeing"),
        pytest.param("--log-level debug", {"logging.level": "debug"}, id="level"),
        pytest.param("", {}, id="nothing"),
    ],
)
def test_own_flags_become_dotted_keys(words, expected):
    assert given_values(*words.split()) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param("--max-num-seq 8", "unknown flag --max-num-seq; did you mean --max-num-seqs?", id="mistyped"),
        pytest.param("--max_num_seq=8", "unknown flag --max_num_seq; did you mean --max-num-seqs?", id="underscores"),
        pytest.param("--prot 1", "unknown flag --prot; did you mean --port?", id="own_flag"),
        pytest.param(
            "--compilation-confg.mode 0",
            "unknown flag --compilation-confg.mode; did you mean --compilation-config?",
            id="dotted",
        ),
        pytest.param("--port 1 a b", "unexpected argument 'b'", id="second_model"),
        pytest.param(
            "--api-key x",
            f"--api-key is not passed to vLLM: {OWNED_FLAGS['api_key']}",
            id="flag_of_vllms_server",
        ),
        pytest.param(
            "--no-allow-credentials",
            f"--no-allow-credentials is not passed to vLLM: {OWNED_FLAGS['allow_credentials']}",
            id="negative_flag_of_vllms_server",
        ),
        pytest.param(
            "--scheduler native --use-proxima",
            "--scheduler native and --use-proxima contradict each other",
            id="two_schedulers",
        ),
        pytest.param(
            "--scheduler proxima --no-use-proxima",
            "--scheduler proxima and --no-use-proxima contradict each other",
            id="two_schedulers_other_way",
        ),
        pytest.param("a --model b", "--model b and MODEL a contradict each other", id="two_models"),
        pytest.param(
            '-cc {"mode":0} --compilation-config.mode 1',
            "--compilation-config is given both as JSON and by dotted keys; use one of the two",
            id="json_and_dotted",
        ),
        pytest.param("-cc.a 1 -cc.a.b 2", "a.b: a is already set to a value", id="value_and_object"),
        pytest.param("-cc.a", "-cc.a needs a value", id="no_value"),
    ],
)
def test_a_wrong_call_says_what_was_meant(words, message):
    with pytest.raises(ConfigError) as caught:
        given_values(*words.split())
    assert str(caught.value).startswith(message)


def test_a_missing_value_is_one_line_and_not_the_usage_of_all_flags():
    with pytest.raises(UsageError) as caught:
        given_values("--port")
    assert str(caught.value) == "argument --port: expected one argument (see `proxima serve --help`)"


def test_the_usage_line_does_not_list_every_flag():
    parser = CommandParser(prog="proxima serve")
    arguments.add_model_argument(parser)
    arguments.add_arguments(parser)
    assert parser.format_usage() == "usage: proxima serve [MODEL] [flags]\n"
    text = parser.format_help()
    assert all(flag.name in text for flag in vllm_flags.load_flags().values())


def test_to_argv_writes_what_vllms_parser_reads():
    engine = {
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "disable_log_stats": False,
        "max_num_seqs": 8,
        "kv_cache_memory_bytes": None,
        "prefix_cache_retention_interval": None,
        "served_model_name": ["a", "b"],
        "device_ids": [0, "GPU-1"],
        "hf_token": True,
        "allowed_local_media_path": "-odd",
        "compilation_config": {"mode": 0},
    }
    assert vllm_flags.to_argv(engine) == [
        "--enforce-eager",
        "--no-enable-prefix-caching",
        "--max-num-seqs=8",
        "--prefix-cache-retention-interval=None",
        "--served-model-name",
        "a",
        "b",
        "--device-ids=0,GPU-1",
        "--hf-token",
        "--allowed-local-media-path=-odd",
        '--compilation-config={"mode": 0}',
    ]


def test_to_argv_refuses_what_vllm_does_not_know():
    with pytest.raises(ValueError, match=r"engine\.max_num_seq is no vLLM flag; did you mean engine\.max_num_seqs\?"):
        vllm_flags.to_argv({"max_num_seq": 8})


def test_every_flag_has_a_kind_that_can_be_read_and_a_default_within_its_own_rules():
    for flag in vllm_flags.load_flags().values():
        assert flag.kind in KINDS
        if flag.default is not None:
            assert flag.parse(flag.default, text=False) in (flag.default, str(flag.default)), flag.name


def test_no_flag_of_ours_hides_one_of_vllm():
    ours = {key.flag for key in keys().values()} | {"--config", "--preset", "--use-proxima", "--json", "--all"}
    theirs = {name for flag in vllm_flags.load_flags().values() for name in (flag.name, *flag.aliases)}
    assert not ours & theirs
    assert not OWNED_FLAGS.keys() & vllm_flags.load_flags().keys()


@settings(deadline=None)
@given(st.sampled_from(sorted(vllm_flags.load_flags())), st.data())
def test_one_wrong_letter_still_finds_the_flag(dest, data):
    at = data.draw(st.integers(0, len(dest) - 1))
    mistyped = dest[:at] + dest[at + 1 :]
    names = vllm_flags.load_flags()
    if mistyped not in names and len(dest) > 12:
        found = nearest(mistyped, names)
        assert found is not None
        # Another flag may be just as close (dbo_decode_... and dbo_prefill_...), but never a far one.
        assert abs(len(found) - len(dest)) <= 2
