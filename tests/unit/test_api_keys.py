"""Keys in files and settings, and the command that makes them."""

from __future__ import annotations

import json

import pytest
import yaml

from proxima_config.api_keys import ApiKey, digest, hash_keys, parse_keys, read_keys_file
from proxima_config.errors import ConfigError
from proxima_config.hints import RequestClass
from proxima_config.layering import load_settings
from proxima_config.settings import AuthSettings
from proxima_server.cli.main import main
from proxima_server.door.keys import RELOAD_INTERVAL_S, Keys

SECRET = "sk-test-0123456789abcdef"
HASH = digest(SECRET)


def written(path, *entries):
    path.write_text(yaml.safe_dump({"keys": list(entries)}))
    return path


def test_an_entry_says_everything(tmp_path):
    path = written(
        tmp_path / "keys.yaml",
        {
            "name": "team-a",
            "sha256": HASH,
            "requests_per_min": 60,
            "tokens_per_min": 1000,
            "max_concurrent": 4,
            "class": "flex",
            "models": ["m"],
            "weight": 2,
            "trust_hints": True,
            "request_timeout_s": 10,
        },
        {"name": "open", "sha256": digest("another-key-of-someone")},
    )
    limited, open_ = read_keys_file(path)
    assert (limited.request_class, limited.models, limited.weight) == (RequestClass.FLEX, frozenset({"m"}), 2)
    assert open_ == ApiKey(name="open", sha256=digest("another-key-of-someone"))


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        pytest.param({"name": "a"}, "key 1 (a): sha256: Field required", id="no_hash"),
        pytest.param({"name": "a b", "sha256": HASH}, "key 1 (a b): name: String should match", id="bad_name"),
        pytest.param({"name": "a", "sha256": SECRET}, "key 1 (a): sha256: String should match", id="not_hashed"),
        pytest.param({"name": "a", "sha256": HASH, "requests_per_min": 0}, "requests_per_min: Input", id="zero"),
        pytest.param({"name": "a", "sha256": HASH, "requests_per_min": "9"}, "requests_per_min: Input", id="text"),
        pytest.param({"name": "a", "sha256": HASH, "class": "vip"}, "class: Input should be", id="unknown_class"),
        pytest.param({"name": "a", "sha256": HASH, "weigth": 2}, "weigth: Extra inputs", id="misspelt"),
        pytest.param("a", "key 1: Input should be", id="no_mapping"),
    ],
)
def test_a_mistake_is_named_and_no_secret_is_shown(tmp_path, entry, problem):
    with pytest.raises(ConfigError) as raised:
        read_keys_file(written(tmp_path / "keys.yaml", entry))
    assert problem in str(raised.value)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("keys: 3", "keys must be a list", id="no_list"),
        pytest.param("key: []", "unknown key key", id="other_root"),
        pytest.param("", "the file is empty", id="empty"),
        pytest.param("keys: [", "not valid YAML", id="broken"),
    ],
)
def test_a_bad_file_is_named(tmp_path, text, problem):
    path = tmp_path / "keys.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        read_keys_file(path)


def test_no_name_and_no_key_comes_twice(tmp_path):
    path = tmp_path / "keys.yaml"
    with pytest.raises(ConfigError, match="two keys are called a"):
        read_keys_file(written(path, {"name": "a", "sha256": HASH}, {"name": "a", "sha256": "0" * 64}))
    with pytest.raises(ConfigError, match="b and a are the same key"):
        read_keys_file(written(path, {"name": "a", "sha256": HASH}, {"name": "b", "sha256": HASH}))


def test_keys_in_settings_are_hashed_as_soon_as_they_are_read():
    environ = {"PROXIMA__AUTH__API_KEYS": f"team-a={SECRET}, team-b=sha256:{'0' * 64}"}
    settings = load_settings(environ=environ).settings
    assert SECRET not in settings.model_dump_json()
    assert [(key.name, key.sha256) for key in parse_keys(settings.auth.api_keys)] == [
        ("team-a", HASH),
        ("team-b", "0" * 64),
    ]
    assert hash_keys(settings.auth.api_keys) == settings.auth.api_keys


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param(SECRET, "NAME=KEY", id="no_name"),
        pytest.param("a=short", "at least 16 characters", id="too_short"),
        pytest.param("a=abababababababababab", "at least 8 different characters per key, a has 2", id="guessable"),
        pytest.param("a=sha256:12", "64 lower-case hexadecimal", id="half_a_hash"),
    ],
)
def test_a_mistake_in_settings_shows_no_key(text, problem):
    with pytest.raises(ConfigError) as raised:
        load_settings(environ={"PROXIMA__AUTH__API_KEYS": text})
    assert problem in str(raised.value)
    assert SECRET not in str(raised.value)
    assert "short" not in str(raised.value)
    assert "abab" not in str(raised.value)


def test_a_changed_file_is_read_again(tmp_path):
    path = written(tmp_path / "keys.yaml", {"name": "a", "sha256": HASH})
    keys = Keys(AuthSettings(api_keys_file=str(path)))
    assert keys.at(0).find(SECRET).name == "a"
    assert keys.at(0).find(SECRET + "x") is None
    replace(path, {"name": "b", "sha256": digest("another-key-of-someone")})
    assert keys.at(RELOAD_INTERVAL_S / 2).find(SECRET) is not None, "not looked at yet"
    assert keys.at(RELOAD_INTERVAL_S).find(SECRET) is None
    assert keys.at(RELOAD_INTERVAL_S).find("another-key-of-someone").name == "b"


def test_a_file_that_turns_bad_keeps_the_keys_of_before(tmp_path, caplog):
    path = written(tmp_path / "keys.yaml", {"name": "a", "sha256": HASH})
    keys = Keys(AuthSettings(api_keys_file=str(path)))
    path.write_text("keys: [")
    for look in range(1, 4):
        assert keys.at(look * RELOAD_INTERVAL_S).find(SECRET) is not None
    assert keys.reloads_failed == 1
    assert caplog.text.count("the keys file is not valid") == 1
    path.unlink()
    assert keys.at(5 * RELOAD_INTERVAL_S).find(SECRET) is not None
    replace(path, {"name": "c", "sha256": HASH})
    assert keys.at(6 * RELOAD_INTERVAL_S).find(SECRET).name == "c"


def replace(path, *entries):
    """As an editor or Kubernetes does: a new file under the old name."""
    written(path.with_suffix(".new"), *entries).replace(path)


def test_a_bad_file_ends_the_start(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        Keys(AuthSettings(api_keys_file=str(tmp_path / "none.yaml")))


def test_a_file_without_keys_lets_nobody_in(tmp_path):
    path = written(tmp_path / "keys.yaml")
    assert Keys(AuthSettings(api_keys_file=str(path))).required
    assert not Keys(AuthSettings()).required


def test_a_new_key_opens_with_the_entry_that_is_printed(tmp_path, capsys):
    assert main(["key", "new", "team-a"]) == 0
    printed = capsys.readouterr().out
    secret = printed.splitlines()[0]
    path = tmp_path / "keys.yaml"
    path.write_text("keys:\n" + printed[printed.index("  - name") :])
    assert main(["key", "check", str(path)]) == 0
    assert "valid (1 keys)" in capsys.readouterr().out
    assert Keys(AuthSettings(api_keys_file=str(path))).ring.find(secret).name == "team-a"


def test_new_keys_differ_and_are_long(capsys):
    made = set()
    for _ in range(3):
        assert main(["key", "new", "a", "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        assert printed["entry"] == {"name": "a", "sha256": digest(printed["key"])}
        made.add(printed["key"])
    assert len(made) == 3
    assert all(len(each) > 50 for each in made)


def test_a_bad_name_is_a_usage_error(capsys):
    assert main(["key", "new", "team a"]) == 2
    assert "NAME" in capsys.readouterr().err
