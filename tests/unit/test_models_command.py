"""`proxima model`, run as a user runs it."""

from __future__ import annotations

import json

import pytest

from proxima_engine.models import SMOLLM2_135M, prepared_path
from proxima_engine.models.folder import write_manifest
from proxima_server.cli.main import main


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def run(capsys):
    def run(*words):
        code = main(["model", *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def prepared():
    """A folder that passes for the prepared model."""
    path = prepared_path(SMOLLM2_135M)
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    write_manifest(path)
    return path


def test_list_before_and_after(run, cache):
    code, out, _ = run("list")
    assert code == 0
    assert "smollm2-135m" in out
    assert "proxima model prepare smollm2-135m" in out


def test_list_as_json(run, prepared):
    code, out, _ = run("list", "--json")
    (row,) = json.loads(out)
    assert code == 0
    assert (row["name"], row["prepared"], row["path"]) == ("smollm2-135m", True, str(prepared))
    assert (row["licence"], row["context_tokens"]) == ("Apache-2.0", 8192)


def test_path_of_a_prepared_model(run, prepared):
    assert run("path", "smollm2-135m") == (0, f"{prepared}\n", "")


def test_path_of_one_that_is_not_prepared(run):
    code, out, error = run("path", "smollm2-135m")
    assert (code, out) == (1, "")
    assert error == "proxima: error: smollm2-135m is not prepared; run: proxima model prepare smollm2-135m\n"


def test_prepare_of_a_whole_folder_only_names_it(run, prepared):
    assert run("prepare", "smollm2-135m") == (0, f"{prepared}\n", "")


def test_a_mistyped_name_is_wrong_usage(run):
    code, _, error = run("prepare", "smollm-135m")
    assert code == 2
    assert "did you mean smollm2-135m?" in error
