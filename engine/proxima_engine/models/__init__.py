"""Models by name: embedded ones, local folders, ids of the model hub."""

from proxima_engine.models.catalogue import SMOLLM2_135M, EmbeddedModel, embedded_models
from proxima_engine.models.folder import is_whole
from proxima_engine.models.prepare import prepare, prepared_path
from proxima_engine.models.resolve import ResolvedModel, resolve_model

__all__ = [
    "SMOLLM2_135M",
    "EmbeddedModel",
    "ResolvedModel",
    "embedded_models",
    "is_whole",
    "prepare",
    "prepared_path",
    "resolve_model",
]
