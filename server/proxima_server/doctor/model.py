"""The model: whether it can be had, and whether there is room for it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from proxima_config.errors import ModelError
from proxima_engine.models import embedded_models, hub, is_whole, prepared_path, resolve_model
from proxima_server.doctor.finding import Finding, blocker, gib, ok, warning
from proxima_server.doctor.subject import Subject

# Caches of compiled kernels and logs.
_SPARE_BYTES = 1 << 30


def check_model(subject: Subject) -> Iterator[Finding]:
    name = subject.settings.model
    if name in embedded_models():
        path = prepared_path(embedded_models()[name])
        yield ok(f"{name}, prepared in {path}" if is_whole(path) else f"{name}, will be prepared at the first start")
        return
    try:
        resolved = resolve_model(name, _revision(subject))
    except ModelError as error:
        message, _, remedy = str(error).partition("; ")
        yield blocker(message, remedy or "check the name, the network and HF_TOKEN, or name a local folder")
        return
    yield ok(f"{name}" if resolved.path_or_id == name else f"{name}, {resolved.path_or_id}")


def check_disk(subject: Subject) -> Iterator[Finding]:
    """Room for what the first start writes."""
    folder, wanted = _target(subject)
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if wanted and not (existing.is_dir() and os.access(existing, os.W_OK)):
        yield blocker(f"{existing} is no folder that can be written to, and the model goes there", _elsewhere(subject))
        return
    free = shutil.disk_usage(existing).free
    if free < wanted:
        yield blocker(f"{folder} has {gib(free)} free, the model needs {gib(wanted)}", _elsewhere(subject))
    elif free < wanted + _SPARE_BYTES:
        yield warning(f"{folder} has {gib(free)} free", _elsewhere(subject))
    else:
        yield ok(f"{folder}, {gib(free)} free" + (f", {gib(wanted)} to come" if wanted else ""))


def _target(subject: Subject) -> tuple[Path, int]:
    """Where the model is or will be, and the bytes that are still to come."""
    name = subject.settings.model
    if name in embedded_models():
        model = embedded_models()[name]
        path = prepared_path(model)
        return path.parent, 0 if is_whole(path) else model.prepared_bytes + model.weights_bytes
    if subject.model_folder is not None and subject.weights_bytes:
        return subject.model_folder, 0
    from huggingface_hub.constants import HF_HUB_CACHE

    download_dir = subject.flag("download_dir")
    folder = Path(str(download_dir or HF_HUB_CACHE)).expanduser()
    on_hub = "://" not in name and not Path(name).expanduser().exists()
    return folder, hub.weights_bytes(name, _revision(subject)) if on_hub else 0


def _elsewhere(subject: Subject) -> str:
    variable = "XDG_CACHE_HOME" if subject.settings.model in embedded_models() else "HF_HOME"
    return f"free some, or set {variable} to a folder with more"


def _revision(subject: Subject) -> str | None:
    revision = subject.settings.engine.get("revision")
    return revision if isinstance(revision, str) else None
