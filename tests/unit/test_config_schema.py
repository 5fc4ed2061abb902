"""The JSON Schema accepts what the loader accepts, and refuses the common mistakes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from proxima_config import presets, vllm_flags
from proxima_config.errors import ConfigError
from proxima_config.hardware import Hardware
from proxima_config.json_schema import settings_schema
from proxima_config.layering import load_settings

SCHEMA = settings_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
CPU = Hardware(has_gpu=False, cpu_flags=frozenset(), cores=2, memory_bytes=8 << 30)
WORDS = st.text("abcxyz/.", min_size=1, max_size=8)
JSON_OBJECTS = st.dictionaries(WORDS, st.one_of(st.booleans(), st.integers(), WORDS), max_size=3)


def load(tree):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "proxima.yaml"
        path.write_text(yaml.safe_dump(tree), encoding="utf-8")
        return load_settings(environ={}, config_file=path, hardware=CPU)


def flag_values(flag):
    low = int(max(flag.bounds.get("ge", 0), flag.bounds.get("gt", -1) + 1))
    high = flag.bounds.get("le", 1 if "lt" in flag.bounds else 10**6)
    integers = st.integers(low, int(min(high, 10**6)))
    human = st.one_of(integers, st.sampled_from(["4k", "4K", "1.5k", "8192"]))
    of_kind = {
        "bool": st.booleans(),
        "int": integers,
        "float": st.just(0.5),
        "str": st.one_of(WORDS, st.integers(0, 9)),
        "human_int": human,
        "human_int_or_auto": st.one_of(human, st.just("auto")),
        "json": JSON_OBJECTS,
        "config": st.one_of(JSON_OBJECTS, st.just('{"mode": 4k}')),
        "json_or_str": st.one_of(JSON_OBJECTS, WORDS),
        "comma_list": st.one_of(st.lists(st.integers(0, 7), min_size=1), st.just("0,1")),
        "lora": st.one_of(st.just("a=b"), st.just({"name": "a", "path": "b"})),
    }
    values = st.sampled_from(flag.choices) if flag.choices else of_kind.get(flag.kind, WORDS)
    if flag.nargs == "+":
        values = st.one_of(values, st.lists(values, min_size=1, max_size=3))
    return st.one_of(values, st.none()) if flag.nullable else values


@settings(max_examples=60, deadline=None)
@given(engine=st.lists(st.sampled_from(sorted(vllm_flags.load_flags())), max_size=5, unique=True), data=st.data())
def test_what_the_loader_accepts_is_valid_and_the_other_way_round(engine, data):
    flags = vllm_flags.load_flags()
    tree = {"engine": {}, "scheduler": {"kind": "native", "max-wait-s": 5}, "server": {"port": 1, "root_path": "/x"}}
    for dest in engine:
        name = dest.replace("_", "-") if data.draw(st.booleans()) else dest
        tree["engine"][name] = data.draw(flag_values(flags[dest]))
    assert not list(VALIDATOR.iter_errors(tree))
    load(tree)


@pytest.mark.parametrize("name", presets.texts())
def test_every_preset_is_a_valid_file(name):
    assert not list(VALIDATOR.iter_errors(yaml.safe_load(presets.texts()[name])))


def test_a_file_with_everything_is_valid():
    tree = {
        "preset": "cpu",
        "model": "a/b",
        "server": {"host": "::", "port": 0, "docs": False},
        "scheduler": {"kind": "native", "max_wait_s": 0, "max_policy_failures": 1},
        "telemetry": None,
        "logging": {"level": "debug"},
        "engine": {"max-num-seqs": 8, "max_model_len": "4k", "lora_modules": [{"name": "a", "path": "b"}]},
    }
    VALIDATOR.validate(tree)
    assert load(tree).settings.scheduler.max_wait_s == 0


@pytest.mark.parametrize(
    "tree",
    [
        pytest.param({}, id="empty"),
        pytest.param({"sever": {}}, id="unknown_section"),
        pytest.param({"server": {"prot": 1}}, id="unknown_key"),
        pytest.param({"server": {"port": 70000}}, id="out_of_bounds"),
        pytest.param({"server": {"port": "8000"}}, id="quoted_number"),
        pytest.param({"server": {"root_path": "llm/"}}, id="pattern"),
        pytest.param({"scheduler": {"kind": "gangs"}}, id="no_such_choice"),
        pytest.param({"engine": {"max_num_seq": 1}}, id="unknown_flag"),
        pytest.param({"engine": {"max_num_seqs": 0}}, id="vllms_bound"),
        pytest.param({"engine": {"max_num_seqs": True}}, id="boolean_as_number"),
        pytest.param({"engine": {"dtype": "float17"}}, id="vllms_choice"),
        pytest.param({"engine": {"max_model_len": "4x"}}, id="no_such_suffix"),
        pytest.param({"engine": {"port": 1}}, id="flag_of_vllms_server"),
        pytest.param({"engine": {"enforce_eager": "true"}}, id="quoted_bool"),
        pytest.param({"preset": "gpus"}, id="unknown_preset"),
    ],
)
def test_a_mistake_is_refused_by_schema_and_loader_alike(tree):
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(tree)
    with pytest.raises(ConfigError):
        load(tree)


def test_the_schema_is_itself_valid_and_describes_every_key():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    for section in ("server", "scheduler", "telemetry", "logging", "engine"):
        assert all(key["description"] for key in SCHEMA["properties"][section]["properties"].values())
