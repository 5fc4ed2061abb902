"""From the name a user gives to what vLLM loads."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from proxima_config.errors import ModelError
from proxima_config.nearest import nearest
from proxima_engine.models import hub
from proxima_engine.models.catalogue import embedded_models
from proxima_engine.models.prepare import ensure_prepared


@dataclass(frozen=True)
class ResolvedModel:
    """path_or_id goes to vLLM's --model; served_name is what clients put into `model`."""

    path_or_id: str
    served_name: str


def resolve_model(name: str, revision: str | None = None) -> ResolvedModel:
    """Resolve an embedded name, a local folder or file, a remote URI or a hub id, in this order.

    Prepares an embedded model that is not in the cache yet. Raises ModelError with what to do about it.
    """
    if name in embedded_models():
        return ResolvedModel(str(ensure_prepared(embedded_models()[name])), name)
    # s3://, gs://, runai: vLLM's own loaders fetch those.
    if "://" in name:
        return ResolvedModel(name, name)
    path = Path(name).expanduser()
    if path.exists():
        return ResolvedModel(str(_checked(path)), name)
    if re.match(r"[/~.]", name):
        raise ModelError(f"there is no folder {name}")
    try:
        # ModelScope has its own accounts and errors.
        located = name if os.environ.get("VLLM_USE_MODELSCOPE") == "1" else hub.locate(name, revision)
    except ModelError as error:
        raise ModelError(f"{error}{_nearest_embedded(name)}") from error
    return ResolvedModel(located, name)


def _checked(path: Path) -> Path:
    if path.is_file():
        if path.suffix == ".gguf":
            return path
        raise ModelError(f"{path} is a file; give the folder that holds the model's config.json")
    # params.json is what Mistral's own format has instead.
    if not any((path / name).is_file() for name in ("config.json", "params.json")):
        raise ModelError(
            f"folder {path} holds no config.json, so it is not a model in Hugging Face format; give the folder that "
            "has it, or the name of a model"
        )
    if (config := path / "config.json").is_file():
        _check_config(config)
    return path


def _check_config(path: Path) -> None:
    try:
        whole = isinstance(json.loads(path.read_text(encoding="utf-8")), dict)
    except ValueError:
        whole = False
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}); see its owner and mode") from error
    if not whole:
        raise ModelError(f"{path} is no JSON object; get the model's files anew, or name another folder")


def _nearest_embedded(name: str) -> str:
    near = nearest(name.lower(), embedded_models())
    return f". Did you mean the embedded model {near}?" if near else ""
