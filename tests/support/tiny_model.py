"""A model made on the spot: a Llama of two layers with random weights and a tokenizer of bytes.

For tests where only behaviour matters. It loads in no time, and its eight heads divide among tensor-parallel ranks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_SIZE, INTERMEDIATE = 256, 2, 8, 4, 32, 512
CONTEXT_TOKENS = 2048
BOS, EOS = "<s>", "</s>"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def write_tiny_model(folder: Path, seed: int = 0, *, context_tokens: int = CONTEXT_TOKENS) -> Path:
    """Writes the model into `folder`; the same seed gives the same weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    vocabulary = tokenizer.get_vocab_size()
    _write(folder / "config.json", _config(vocabulary, context_tokens))
    _write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BOS,
            "eos_token": EOS,
            "chat_template": CHAT_TEMPLATE,
            "model_max_length": context_tokens,
        },
    )
    save_file(_weights(vocabulary, np.random.default_rng(seed)), folder / "model.safetensors", {"format": "pt"})
    return folder


def _tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([BOS, EOS, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([BOS, EOS])
    return tokenizer


def _config(vocabulary: int, context_tokens: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_SIZE,
        "hidden_act": "silu",
        "max_position_embeddings": context_tokens,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "float32",
    }


def _weights(vocabulary: int, random: np.random.Generator) -> dict[str, np.ndarray]:
    def matrix(rows: int, columns: int) -> np.ndarray:
        return (random.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    ones = np.ones(HIDDEN, np.float32)
    weights = {"model.embed_tokens.weight": matrix(vocabulary, HIDDEN), "model.norm.weight": ones}
    for layer in range(LAYERS):
        own = {
            "self_attn.q_proj": matrix(HEADS * HEAD_SIZE, HIDDEN),
            "self_attn.k_proj": matrix(KV_HEADS * HEAD_SIZE, HIDDEN),
            "self_attn.v_proj": matrix(KV_HEADS * HEAD_SIZE, HIDDEN),
            "self_attn.o_proj": matrix(HIDDEN, HEADS * HEAD_SIZE),
            "mlp.gate_proj": matrix(INTERMEDIATE, HIDDEN),
            "mlp.up_proj": matrix(INTERMEDIATE, HIDDEN),
            "mlp.down_proj": matrix(HIDDEN, INTERMEDIATE),
            "input_layernorm": ones.copy(),
            "post_attention_layernorm": ones.copy(),
        }
        weights |= {f"model.layers.{layer}.{name}.weight": value for name, value in own.items()}
    return weights


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2))
