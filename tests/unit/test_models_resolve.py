"""From a model's name to what vLLM loads, with a hub that answers like the real one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from model_hub import COMMIT, TOKEN, model_hub

from proxima_config.errors import ModelError
from proxima_engine.models import ResolvedModel, resolve_model


@pytest.fixture(scope="module")
def hub():
    with model_hub() as url:
        yield url


# One process each: the hub client reads its environment when it is imported.
RESOLVE = """
import sys
from proxima_config.errors import ModelError
from proxima_engine.models import resolve_model
try:
    print(resolve_model(*sys.argv[1:]).path_or_id)
except ModelError as error:
    print("error:", error)
"""


@pytest.fixture
def resolve(hub, tmp_path):
    def resolve(*arguments: str, **environ: str) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        environment |= {"HF_ENDPOINT": hub, "HF_HOME": str(tmp_path), "NO_PROXY": "127.0.0.1", **environ}
        command = [sys.executable, "-c", RESOLVE, *arguments]
        return subprocess.check_output(command, env=environment, text=True, stderr=subprocess.DEVNULL).strip()

    return resolve


def cached(home: Path, repository: str) -> str:
    """A finished download, as the hub client lays it out."""
    folder = home / "hub" / f"models--{repository.replace('/', '--')}"
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    return str(snapshot)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("owner/open", id="open"),
        pytest.param("gpt2", id="without_owner"),
        pytest.param("owner/gguf", id="without_config"),
        pytest.param("owner/gguf:Q4_K_M", id="one_file_of_a_gguf_repository"),
    ],
)
def test_a_model_on_the_hub_is_left_to_vllm(resolve, name):
    assert resolve(name) == name


def test_a_gated_model_is_explained_and_opened_by_a_token(resolve):
    assert resolve("owner/gated") == (
        "error: model owner/gated is gated; accept its licence at https://huggingface.co/owner/gated "
        "and set HF_TOKEN to a token of that account"
    )
    assert "is gated" in resolve("owner/gated", HF_TOKEN="hf_other")
    assert resolve("owner/gated", HF_TOKEN=TOKEN) == "owner/gated"


def test_an_unknown_model_is_explained(resolve):
    assert "model owner/none is neither a local folder nor on the model hub" in resolve("owner/none")


def test_an_unknown_revision_is_explained(resolve):
    assert resolve("owner/open", "v9") == "error: model owner/open has no revision v9"


def test_a_mistyped_embedded_name_is_recognised(resolve):
    assert resolve("smolm2-135m").endswith("Did you mean the embedded model smollm2-135m?")


@pytest.mark.parametrize(
    ("repository", "environ", "reason"),
    [
        pytest.param("owner/open", {"HF_ENDPOINT": "http://127.0.0.1:9"}, "cannot be reached", id="no_network"),
        pytest.param("owner/open", {"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set", id="offline_on_purpose"),
        pytest.param("owner/broken", {}, "answered 500", id="hub_down"),
    ],
)
def test_without_the_hub_a_downloaded_copy_serves(resolve, tmp_path, repository, environ, reason):
    said = resolve(repository, **environ)
    assert said.startswith(f"error: cannot get model {repository}: ")
    assert reason in said
    snapshot = cached(tmp_path, repository)
    assert resolve(repository, **environ) == snapshot


def test_a_local_folder_keeps_the_name_the_user_gave(tmp_path, monkeypatch):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert resolve_model("./m") == ResolvedModel("m", "./m")
    assert resolve_model(str(tmp_path / "m")).path_or_id == str(tmp_path / "m")


def test_a_local_gguf_file_is_left_to_vllm(tmp_path):
    (tmp_path / "m.gguf").touch()
    assert resolve_model(str(tmp_path / "m.gguf")).path_or_id == str(tmp_path / "m.gguf")


def test_an_object_store_is_left_to_vllm():
    assert resolve_model("s3://bucket/model") == ResolvedModel("s3://bucket/model", "s3://bucket/model")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("empty", "holds no config.json", id="folder_without_model"),
        pytest.param("file.bin", "give the folder", id="file"),
        pytest.param("./missing", "there is no folder ./missing", id="missing_relative"),
        pytest.param("/missing/model", "there is no folder /missing/model", id="missing_absolute"),
        pytest.param("a/b/c", "neither a local folder nor an id", id="no_id"),
    ],
)
def test_what_is_no_model_is_explained(tmp_path, monkeypatch, name, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.bin").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=message):
        resolve_model(name)
