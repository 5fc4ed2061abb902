"""Shipped traces by bare name; a file of the person's own comes first."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxima_config.errors import UsageError
from proxima_config.traces import AZURE_CUT, shipped, text_of


def test_a_bare_name_means_the_shipped_trace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = text_of(Path(AZURE_CUT)).splitlines()
    assert lines[0] == "arrival_s,input_tokens,output_tokens"
    assert len(lines) == 1501


def test_a_file_in_the_current_folder_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path(AZURE_CUT).write_text("mine", encoding="utf-8")
    assert text_of(Path(AZURE_CUT)) == "mine"


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(f"elsewhere/{AZURE_CUT}", id="with_a_folder"),
        pytest.param("none.csv", id="no_such_trace"),
        pytest.param("SOURCES.md", id="no_trace"),
        pytest.param(".", id="folder"),
    ],
)
def test_what_is_neither_is_refused_by_name(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"^{path.replace('.', '[.]')}: cannot be read"):
        text_of(Path(path))


def test_a_file_that_is_no_text(tmp_path):
    (tmp_path / "trace.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not UTF-8"):
        text_of(tmp_path / "trace.csv")


def test_origin_and_licence_of_each_shipped_trace_are_beside_it():
    sources = (Path(__file__).resolve().parents[2] / "config/proxima_config/traces/SOURCES.md").read_text("utf-8")
    folder = Path(str(shipped(AZURE_CUT))).parent
    for trace in folder.glob("*.csv"):
        (line,) = [line for line in sources.splitlines() if f"`{trace.name}`" in line]
        assert "CC-BY-4.0" in line
