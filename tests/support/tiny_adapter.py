"""A LoRA adapter for the tiny model, made on the spot: random, so that its answers differ from the model's own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tiny_model import HEAD_SIZE, HEADS, HIDDEN, LAYERS

RANK = 8


def write_tiny_adapter(folder: Path, seed: int) -> Path:
    """Writes the adapter into `folder`; the same seed gives the same weights."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": 4 * RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["q_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    random = np.random.default_rng(seed)
    weights = {}
    for layer in range(LAYERS):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights[f"{name}.lora_A.weight"] = random.standard_normal((RANK, HIDDEN)).astype(np.float32)
        weights[f"{name}.lora_B.weight"] = random.standard_normal((HEADS * HEAD_SIZE, RANK)).astype(np.float32)
    save_file(weights, folder / "adapter_model.safetensors", {"format": "pt"})
    return folder
